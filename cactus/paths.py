"""Where the assets are: beside the package in the source tree, inside it once it is installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
ASSETS = next((place for place in (_PACKAGE / "assets", _PACKAGE.parent / "assets") if place.is_dir()), _PACKAGE)
