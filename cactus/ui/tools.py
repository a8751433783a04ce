"""The public endpoints as tools of the Model Context Protocol: Gradio's server of them, better mannered.

Behind a caller who has gone away the run ends, as it does everywhere else; an answer has one text for each value, the
values in JSON. Needs the package `mcp`.
"""

import asyncio
import json
from typing import Any

import anyio
import gradio.mcp
from gradio_client.client import Job


class Tools(gradio.mcp.GradioMCPServer):
    """What Gradio makes of the endpoints of a page."""

    async def _execute_tool_without_progress(self, job: Job) -> list[Any]:
        try:
            values = await asyncio.wrap_future(job.future)
        finally:
            await _ended(job)
        return list(values) if isinstance(values, tuple) else [values]

    async def _execute_tool_with_progress(self, job: Job, progress_token: str | int) -> Any:
        try:
            return await super()._execute_tool_with_progress(job, progress_token)
        finally:
            await _ended(job)

    def postprocess_output_data(self, data: Any, root_url: str) -> list[Any]:
        """A string as it is, anything else in JSON: none of the endpoints gives files."""
        texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in data]
        return [self.types.TextContent(type="text", text=text) for text in texts]


async def _ended(job: Job) -> None:
    """Whoever asked has the answer or has gone: nothing of the job goes on."""
    if job.done():
        return
    with anyio.CancelScope(shield=True):
        while job.communicator and job.communicator.event_id is None and not job.done():
            await anyio.sleep(0.01)  # before that the server would not know what is cancelled
        await anyio.to_thread.run_sync(job.cancel)


def offer() -> None:
    """The next page that is launched with `mcp_server` has these."""
    gradio.mcp.GradioMCPServer = Tools  # type: ignore[misc]
