"""A path of 0.17 (`zae_limiter.v017`)."""

from ..v017.infra import get_cfn_template as get_cfn_template
