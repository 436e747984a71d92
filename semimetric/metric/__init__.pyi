from semimetric.metric.angular import AngularProblem as AngularProblem
from semimetric.metric.capture import GraphedFunction as GraphedFunction
from semimetric.metric.closed_forms import largest_weight as largest_weight, logdet_divergence as logdet_divergence, logdet_proximal as logdet_proximal, minimize_with_unit_determinant as minimize_with_unit_determinant, project_psd as project_psd
from semimetric.metric.conjugate_gradient import minimize_angular as minimize_angular
from semimetric.metric.entropy import EntropyProblem as EntropyProblem, PSDResult as PSDResult, convex_steps as convex_steps, label_surprise as label_surprise, mean_entropy as mean_entropy, projected_gradient as projected_gradient
from semimetric.metric.geometry import Euclidean as Euclidean, Geometry as Geometry, Stiefel as Stiefel, orthonormalize as orthonormalize, random_orthonormal as random_orthonormal, retract as retract
from semimetric.metric.itml import information_theoretic_prior as information_theoretic_prior
from semimetric.metric.mahalanobis import Metric as Metric, near_isometry as near_isometry
from semimetric.metric.priors import likelihood_ratio_prior as likelihood_ratio_prior
from semimetric.metric.rules import CGResult as CGResult
from semimetric.metric.scatters import PairScatters as PairScatters, pair_means as pair_means, pair_scatters as pair_scatters, weighted_energy as weighted_energy, weighted_scatter as weighted_scatter
from semimetric.metric.span import Span as Span
from semimetric.metric.whiten import whitening as whitening, within_class_share as within_class_share, within_class_whitening as within_class_whitening
