"""Which files an installation has; all else is in pyproject.toml. The assets become part of the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cactus*"]), "cactus.assets"],
    package_dir={"cactus.assets": "assets"},
)
