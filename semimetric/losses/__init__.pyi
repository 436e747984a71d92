from semimetric.losses.angular import angular_loss as angular_loss, angular_margins as angular_margins, batch_angular_loss as batch_angular_loss
from semimetric.losses.contextual import contextual_targets as contextual_targets, neighbourhood_divergence as neighbourhood_divergence, relaxed_contrastive_loss as relaxed_contrastive_loss
from semimetric.losses.contrastive import contrastive_loss as contrastive_loss
from semimetric.losses.instance import instance_loss as instance_loss, noise_contrastive_loss as noise_contrastive_loss, scaled_cosines as scaled_cosines
from semimetric.losses.triplet import triplet_loss as triplet_loss, triplet_violations as triplet_violations
