"""A path of 0.17 (`zae_limiter.v017`)."""

from ..v017.infra import (
    build_lambda_package as build_lambda_package,
    get_package_info as get_package_info,
    write_lambda_package as write_lambda_package,
)
