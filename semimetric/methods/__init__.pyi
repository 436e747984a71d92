from semimetric.methods.base import Constraints as Constraints, LearnsFromAverage as LearnsFromAverage, LearnsMetric as LearnsMetric, Method as Method, Needs as Needs, PredictsClasses as PredictsClasses, is_taught as is_taught
from semimetric.methods.baseline import Targets as Targets
from semimetric.methods.registry import METHODS as METHODS, build_method as build_method, method_names as method_names, register_method as register_method
