"""Starts the page: `python app.py`, then open http://127.0.0.1:7860.

On a hosted Space or in a container (SPACE_ID, or GRADIO_SERVER_NAME set) it listens on every interface, elsewhere
on this machine only. GRADIO_SERVER_PORT, GRADIO_ROOT_PATH and the other variables of Gradio are respected.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from typing import Any

from cactus.errors import CactusError
from cactus.limits import MAX_SESSIONS, Limits
from cactus.ui import space  # before torch, which what `main` imports brings in

FLAGS = (
    ("max_runs", int, "runs that take turns on the models at once"),
    ("max_waiting", int, "runs that may wait in line; the next visitor is told that the page is busy"),
    ("max_pairs", int, "model pairs that stay loaded"),
    ("max_seconds", float, "seconds after which a run ends, without what it waits for others"),
    ("max_new_tokens", int, "tokens a run may write"),
    ("max_prompt_characters", int, "characters of prompt and system prompt"),
)

SERVER_RUNS = 32  # at once, where a server batches them: nobody waits for another's model


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Options, with the server's limits as `limits`; what is not given is left to Gradio's variables."""
    parser = argparse.ArgumentParser(description="Cactus: constrained acceptance speculative sampling, live.")
    parser.add_argument("--host", help="address to listen on (default: this machine only; all on a Space)")
    parser.add_argument("--port", type=int, help="port (default: GRADIO_SERVER_PORT, else 7860)")
    parser.add_argument("--share", action="store_true", help="also give a public link through Gradio's relay")
    parser.add_argument(
        "--mcp", action="store_true", default=os.environ.get("GRADIO_MCP_SERVER", "").lower() == "true",
        help="also serve the API as MCP tools (needs the package mcp)",
    )  # fmt: skip
    _add_engine(parser)
    limits = parser.add_argument_group("limits")
    for name, kind, meaning in FLAGS:
        default, flag = getattr(Limits, name), f"--{name.replace('_', '-')}"
        limits.add_argument(flag, type=kind, default=default, metavar="N", help=f"{meaning}; default: {default:g}")
    limits.add_argument(
        "--public", action=argparse.BooleanOptionalAction,
        help="strangers use it: no models but the listed pairs, and no files from visitors; default: on a Space, and "
             "with --share",
    )  # fmt: skip
    if parser.parse_known_args(argv)[0].engine == "vllm":
        parser.set_defaults(max_runs=SERVER_RUNS)
    args = parser.parse_args(argv)
    if args.public is None:
        args.public = space.IS_SPACE or args.share
    if (args.engine == "vllm") != bool(args.url):
        parser.error("--url is the address of a server for --engine vllm; give both or neither")
    if args.mcp and not find_spec("mcp"):
        parser.error('--mcp needs the package mcp: pip install "mcp~=1.30"')
    try:
        args.limits = Limits(public=args.public, **_given(args))
    except CactusError as error:
        parser.error(str(error))
    return args


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = parser.add_argument_group("engine", "what runs the models")
    engine.add_argument("--engine", choices=["local", "vllm"], default="local", help="what runs them; default: local")
    engine.add_argument(
        "--static", action="store_true",
        help="local: run models on static caches, on CUDA devices as graphs (not run on a GPU yet)",
    )  # fmt: skip
    engine.add_argument("--url", default="", help="vllm: address of a server with the plugin, such as http://host:8000")
    engine.add_argument("--model", default="", help="vllm: which of the server's models; default: its first")
    engine.add_argument(
        "--baseline-url", default="", metavar="URL",
        help="vllm: a second server, without speculation, to measure against; without it no speedup is shown",
    )  # fmt: skip


def new_session(args: argparse.Namespace) -> Any:
    """What runs the models: this process, or a server."""
    if args.engine == "local":
        from cactus.session import Session

        return space.apart(lambda: Session(limits=args.limits, static=args.static))
    from cactus.server import Server, ServerSession

    baseline = Server(args.baseline_url) if args.baseline_url else None
    return ServerSession(Server(args.url, args.model), baseline, args.limits)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name, *_ in FLAGS}


def address(args: argparse.Namespace) -> str:
    """Where to listen: as told, else everywhere on a Space and on this machine alone elsewhere."""
    return args.host or os.environ.get("GRADIO_SERVER_NAME") or ("0.0.0.0" if space.IS_SPACE else "127.0.0.1")


def launch_options(args: argparse.Namespace) -> dict[str, Any]:
    """How the page is served."""
    from cactus.ui.readers import MIDDLEWARE
    from cactus.ui.theme import STYLES, head, theme

    if args.mcp:
        from cactus.ui import tools

        tools.offer()
    return {
        "server_name": address(args),
        "server_port": args.port,
        "share": args.share,
        "mcp_server": args.mcp,
        "ssr_mode": False,
        "run_history": False,
        "state_session_capacity": MAX_SESSIONS,
        "max_file_size": args.limits.max_upload_bytes,
        "footer_links": ["api"],
        "theme": theme(),
        "css_paths": [STYLES],
        "head": head(),
        "app_kwargs": {"middleware": MIDDLEWARE},
    }


def main(argv: list[str] | None = None) -> None:
    """Build the page, start to load the default pair beside it, and serve."""
    args = parse_args(argv)
    from cactus.ui import pair_list
    from cactus.ui.desk import Loader
    from cactus.ui.layout import build

    session = new_session(args)
    loader = Loader(session)
    demo = build(session, loader)
    loader.start(pair_list.first(session.states()))
    demo.launch(**launch_options(args))


if __name__ == "__main__":
    main()
