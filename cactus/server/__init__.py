"""Runs on a vLLM server with the plugin (`cactus.vllm`), watched from outside and told as rounds and traces."""

from cactus.server.client import Server, ServerError
from cactus.server.session import ServerSession

__all__ = ["Server", "ServerError", "ServerSession"]
