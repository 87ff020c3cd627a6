"""The MCP server: tools and resources over the retrieval service, for assistants.

The service searches, the provider reads documents, and a writer stores notes. The caller provides
them, with the visible scope: one for the whole server, or one for each token. A name is imported
when it is first used, so that the commands can say which extra is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from second_brain.mcp_server.scope import Scope
    from second_brain.mcp_server.server import create_server
    from second_brain.mcp_server.supabase_users import SupabaseUsers
    from second_brain.mcp_server.tokens import OneToken
    from second_brain.mcp_server.transports import serve_http, serve_stdio

__all__ = [
    "OneToken",
    "Scope",
    "SupabaseUsers",
    "create_server",
    "serve_http",
    "serve_stdio",
]

_HOMES = {
    "OneToken": "tokens",
    "Scope": "scope",
    "SupabaseUsers": "supabase_users",
    "create_server": "server",
    "serve_http": "transports",
    "serve_stdio": "transports",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
