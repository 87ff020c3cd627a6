"""The MCP server: tools and resources over the retrieval service, for assistants.

The service searches, the provider reads documents, and a writer stores notes. The caller provides
them, with the visible scope: one for the whole server, or one for each token.
"""

from second_brain.mcp_server.scope import Scope
from second_brain.mcp_server.server import create_server
from second_brain.mcp_server.supabase_users import SupabaseUsers
from second_brain.mcp_server.tokens import OneToken, TokenFile
from second_brain.mcp_server.transports import serve_http, serve_stdio

__all__ = [
    "OneToken",
    "Scope",
    "SupabaseUsers",
    "TokenFile",
    "create_server",
    "serve_http",
    "serve_stdio",
]
