"""Errors by kind, and the one place that turns what a database or an HTTP client raises into them.

An error names what went wrong, the code of PostgreSQL or PostgREST, and what to do about it.
"""

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from second_brain.redaction import MESSAGE_LIMIT as MESSAGE_LIMIT
from second_brain.redaction import QUOTED
from second_brain.redaction import redacted as redacted
from second_brain.redaction import safe_message as safe_message
from second_brain.sql_modules import module_of

if TYPE_CHECKING:
    import psycopg


class SecondBrainError(Exception):
    """Anything that second-brain reports: the message, `code` and `remedy`.

    `code` is the SQLSTATE, PostgREST's code or an HTTP status, None where there was none.
    `kind` is the class in one word, for logs and JSON; for `http_status` see the function.
    """

    kind: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    default_remedy: ClassVar[str] = (
        "Run `second-brain doctor` against the database, and look the code up in its log."
    )

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy or self.default_remedy

    @property
    def remedy(self) -> str:
        """What to do. A traceback shows it below the message."""
        return self._remedy

    @remedy.setter
    def remedy(self, remedy: str) -> None:
        self._remedy = remedy
        self.__notes__ = [remedy]


class InvalidInputError(SecondBrainError, ValueError):
    """An argument that the function, or the conversion to its type, refused.

    It is a ValueError, too.
    """

    kind = "invalid_input"
    http_status = 400
    default_remedy = "Correct the argument that the message names."


class DimensionMismatchError(InvalidInputError):
    """An embedding of another size than the column's."""

    kind = "dimension_mismatch"
    http_status = 500
    default_remedy = (
        "Embed with the model that embedded the corpus. For another one, install with its "
        "--dimensions, or change the corpus's: `second-brain corpus reembed start --embedder NAME` "
        "of the Python package."
    )


class MigrationMissingError(SecondBrainError):
    """The database, or PostgREST's picture of it, lacks the function as it was called."""

    kind = "migration_missing"
    default_remedy = (
        "Apply the migrations (`supabase db push` or `second-brain migrate`); if they are there, "
        "reload PostgREST with `notify pgrst, 'reload schema'`."
    )


class ModuleMissingError(MigrationMissingError):
    """The database lacks a function or a table of `module`, or has it as an older version did."""

    kind = "module_missing"

    def __init__(self, message: str, *, module: str, code: str | None = None) -> None:
        super().__init__(
            f"{message}; it is of the module {module}, which is not installed or too old",
            code=code,
            remedy=f"Install it: `second-brain migrate --with {module}`, or `second-brain init "
            f"--with {module}` and `supabase db push`. If it is there, reload PostgREST with "
            "`notify pgrst, 'reload schema'`.",
        )
        self.module = module


class PermissionDeniedError(SecondBrainError):
    """The role may not call the function or use what it needs."""

    kind = "permission_denied"
    default_remedy = (
        "For a signed-in user call search_my_knowledge_chunks (search_my_knowledge in Python) with "
        "the user's token. All other searches are for a server with the service role "
        "(service_role); if it has that role, apply the migrations again."
    )


class AuthenticationError(SecondBrainError):
    """The key, token or password was not accepted."""

    kind = "authentication_failed"
    default_remedy = "Check that the key or password is this project's and has not expired."


class SearchTimeoutError(SecondBrainError):
    """The database ended the statement: it took longer than `timeout` or statement_timeout."""

    kind = "timeout"
    http_status = 504
    default_remedy = (
        "Lower pool_size, narrow the filter, or raise timeout and the role's statement_timeout; "
        "`second-brain doctor` says whether an index is missing or the tables were never analysed."
    )


class ClientTimeoutError(SearchTimeoutError):
    """No answer came, not even that the statement was ended."""

    kind = "client_timeout"
    default_remedy = (
        "Raise timeout if the network is slow; otherwise look whether the server, or a proxy "
        "before it, still answers. The connection was given up."
    )


class UnavailableError(SecondBrainError):
    """The server could not be reached, or is starting, stopping or out of connections."""

    kind = "unavailable"
    http_status = 503
    default_remedy = (
        "Try again shortly; if it stays, check the address and that the project is not paused."
    )


class ConnectionLostError(UnavailableError):
    """The connection broke before the answer was there."""

    kind = "connection_lost"
    default_remedy = (
        "Try again: the server restarted, or ended the connection. If it stays, look into the "
        "server's log, and whether a proxy ends idle connections."
    )


class UncertainWriteError(ConnectionLostError):
    """The connection broke during the commit: the write may be stored or not.

    `keys` are the external keys of its documents; empty when the write was not about documents.
    """

    kind = "uncertain_write"
    default_remedy = (
        "Send the write again: an upsert or a deletion that was stored already changes nothing the "
        "second time."
    )

    def __init__(
        self,
        message: str,
        *,
        keys: Iterable[str] = (),
        code: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.keys = tuple(keys)


class QuotaExceededError(SecondBrainError):
    """Every try exceeded a rate limit, or the account or project has no credit left."""

    kind = "quota_exceeded"
    http_status = 503
    default_remedy = (
        "Wait, or stay below the account's limit with a RateLimit. The provider's usage page shows "
        "whether credit is left."
    )


class ConflictError(SecondBrainError):
    """Another transaction came between; the same call can succeed the next time."""

    kind = "conflict"
    http_status = 409
    default_remedy = "Repeat the call."


class UnexpectedAnswerError(SecondBrainError):
    """An answer that is not a function's rows: another service, a proxy's page, broken JSON."""

    kind = "unexpected_answer"
    http_status = 502
    default_remedy = "Check that the URL is the Supabase project's own and that no proxy answers."


class ConfigurationError(SecondBrainError):
    """A setting, path or package on this side is missing or wrong."""

    kind = "configuration"
    default_remedy = "Correct the setting that the message names."


class ClientUnavailableError(SecondBrainError):
    """There are no credentials to make a client with."""

    kind = "client_unavailable"
    default_remedy = "Give supabase_url and supabase_key, or set SUPABASE_URL and SUPABASE_KEY."


class MissingExtraError(ConfigurationError):
    """A package that only an extra of second-brain installs is missing."""

    kind = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed",
            remedy=f"Install it with: pip install 'second-brain[{extra}]'",
        )


NO_KEY = "the key is none that HTTP can send"


class UnknownArgumentError(TypeError):
    """A call with an argument that the method does not have: a mistake in the program."""


_INVALID_INPUT_CODES = (
    "22023",  # the functions' own refusals
    # What a value meets before or while it becomes the argument's type.
    *("22000", "22001", "22003", "22007", "22008", "2201W", "2201X", "22021", "22P02", "22P05"),
    *("42846", "PGRST102"),
    # Statuses of a gateway: what it cannot read, and what is too large.
    *("400", "413", "414", "422", "431"),
    # Too long or too deep: a text past the tsvector limit, JSON past the stack.
    "54000",
    "54001",
    # What a written document may not hold.
    "23502",
    "23503",
    "23514",
)

_UNAVAILABLE_CODES = (
    # PostgREST without its database, PostgreSQL stopping or starting.
    *("PGRST000", "PGRST001", "PGRST002", "PGRST003", "57P01", "57P02", "57P03"),
    # Sessions that were idle for too long.
    *("25P03", "57P05"),
    # Read-only: a standby, or a primary whose disk is nearly full.
    "25006",
    # The status of a gateway that had no answer to pass on, or of a project that is paused.
    *("408", "425", "502", "503", "504", "507", "509", "520", "521", "522", "523", "524", "525"),
    *("526", "527", "529", "530", "540", "544", "546"),
)

_CLASSES: dict[str, type[SecondBrainError]] = {
    **dict.fromkeys(_INVALID_INPUT_CODES, InvalidInputError),
    **dict.fromkeys(("PGRST202", "PGRST203", "PGRST205", "PGRST106"), MigrationMissingError),
    **dict.fromkeys(("42883", "42P01", "42703", "42704", "3F000"), MigrationMissingError),
    "42501": PermissionDeniedError,
    **dict.fromkeys(
        ("PGRST300", "PGRST301", "PGRST302", "PGRST303", "28000", "28P01", "401", "403"),
        AuthenticationError,
    ),
    **dict.fromkeys(("57014", "25P04"), SearchTimeoutError),
    **dict.fromkeys(_UNAVAILABLE_CODES, UnavailableError),
    **dict.fromkeys(("23505", "40001", "40P01", "55P03"), ConflictError),
    "3D000": ConfigurationError,
    **dict.fromkeys(("402", "429"), QuotaExceededError),
    **dict.fromkeys(
        ("301", "302", "307", "308", "404", "405", "406", "410", "415"), UnexpectedAnswerError
    ),
}

# By the two characters that an SQLSTATE's class is: connection, out of resources.
_STATE_CLASSES: dict[str, type[SecondBrainError]] = {
    "08": UnavailableError,
    "54": InvalidInputError,
    "53": UnavailableError,
}

_REMEDIES: dict[str, str] = {
    "PGRST203": (
        "Two overloads of the function fit: drop the older one (psql's `\\df` lists both), "
        "then `notify pgrst, 'reload schema'`."
    ),
    "PGRST106": "Add the schema of the install (default: public) to the API's exposed schemas.",
    "PGRST303": "Get a new token: this one has expired or its claims do not hold.",
    "PGRST003": "Lower the number of calls at once, or raise PostgREST's db-pool.",
    "25006": (
        "Write to the primary: this connection is read only. Where the primary is (Supabase sets "
        "default_transaction_read_only when the disk is nearly full), enlarge the disk or free "
        "space."
    ),
    "25P02": "Roll the connection's transaction back: an earlier statement in it failed.",
    "3D000": "Check the database's name in the connection string.",
    "53100": (
        "The database's disk is full: enlarge it, or remove old versions with "
        "purge_knowledge_chunks and run `vacuum`. If the message names shared memory, build the "
        "index with `--workers 0` or less `--memory`."
    ),
    "53300": "Lower the number of connections, or go through the connection pooler.",
    "402": "Look at the usage of the project in Supabase's dashboard: it is over its quota.",
    "429": "Wait, and send fewer calls at once.",
    "540": "Restore the project in Supabase's dashboard: it is paused.",
    "54000": "Shorten the text or the vector.",
    "54001": "Nest the JSON less deeply.",
}

VISITORS_REMEDY = (
    "Grant it as the owner: grant execute on function search_public_knowledge_chunks to anon. "
    "With the service role, give hybrid_search public_only=True."
)
"""What to do so that visitors can search."""
TIMEOUT_OF_WRITES = (
    "Raise the statement_timeout of this role (alter role ... set statement_timeout), or write "
    "less at once. Nothing of this call was stored; what was committed before stays."
)
_COMMAND_REMEDIES: dict[str, str] = {
    "42501": (
        "Connect as the owner of the tables (on Supabase: postgres); --prelude needs a superuser, "
        "or the owner of the database with CREATEROLE."
    ),
    "55P03": "Wait for the transaction that holds the lock, then run the command again.",
    "40P01": "Run the command again: nothing of it was written.",
}
"""Remedies of statements that a command runs itself, where those of searches do not help."""

# A function, a relation or a type does not exist, as PostgreSQL and PostgREST say it.
_NO_SUCH_OBJECT = ("42883", "42P01", "42704", "PGRST202", "PGRST205")
_NAMED = re.compile(r"""\b(?:function|relation|table|type) ["']?(?:\w+\.)?(\w+)""")
_NEEDED_MODULE = re.compile(r"second-brain migrate --with (\w+)")
_LONG_ARGUMENTS = re.compile(r"\((?:[^()]|\([^()]*\)){40,}\)")
_DIMENSIONS = re.compile(r"different vector dimensions|expected \d+ dimensions|\d+ dimensions")
_UNKNOWN_ROLE = re.compile(r'^role ".*" does not exist')
# Supabase's gateway answers before PostgREST does, without a code.
_GATEWAY_REFUSAL = re.compile(r"api key|unauthorized|jwt", re.IGNORECASE)
_WRONG_CONNECTION_STRING = re.compile(
    r'connection info string|connection option|(?:database|role) ".*" does not exist'
)


def translate(error: Exception) -> SecondBrainError:
    """Turn what supabase-py, httpx or psycopg raised into an error of this module.

    The result's message is bounded and redacted (see `safe_message`). An error of this module
    comes back as it is. Use it as `raise translate(error) from error`.
    """
    import httpx
    import psycopg
    import psycopg_pool
    from postgrest.exceptions import APIError
    from pydantic import ValidationError

    if isinstance(error, SecondBrainError):
        return error
    if isinstance(error, APIError):
        status = getattr(error, "status", None)
        return _from_code(error.code, error.message or "", hint=error.hint, status=status)
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout | psycopg_pool.PoolTimeout):
        return UnavailableError(safe_message(error))
    if isinstance(error, httpx.TimeoutException):
        return ClientTimeoutError(safe_message(error) or "the answer did not come in time")
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return ConfigurationError("the URL is not one", remedy="Check SUPABASE_URL.")
    if isinstance(error, httpx.LocalProtocolError):
        # Its text quotes the header, which is the key.
        return ConfigurationError(NO_KEY, remedy="Check SUPABASE_KEY.")
    if isinstance(error, httpx.DecodingError | httpx.TooManyRedirects):
        return UnexpectedAnswerError(safe_message(error))
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return ConnectionLostError(safe_message(error) or type(error).__name__)
    if isinstance(error, httpx.TransportError):
        return UnavailableError(safe_message(error) or type(error).__name__)
    if isinstance(error, psycopg.Error):
        return _from_psycopg(error)
    if isinstance(error, json.JSONDecodeError | ValidationError):
        return UnexpectedAnswerError(f"the answer could not be read: {type(error).__name__}")
    if "integer string conversion: value has" in str(error):
        return UnexpectedAnswerError(
            "the answer has a number with more digits than Python reads",
            remedy="Store this number in the chunk's metadata as a text.",
        )
    # What the client refuses to send: NaN, a lone surrogate, an object that JSON has no form for.
    if isinstance(error, ValueError | TypeError | OverflowError | RecursionError):
        return InvalidInputError(safe_message(error))
    return SecondBrainError(safe_message(error) or type(error).__name__)


def of_command(error: "psycopg.Error") -> SecondBrainError:
    """Turn what a statement of a command raised into an error with the command's remedy."""
    known = translate(error)
    if isinstance(known, SearchTimeoutError):
        known.remedy = TIMEOUT_OF_WRITES
    elif not error.diag.message_hint and (remedy := _COMMAND_REMEDIES.get(known.code or "")):
        known.remedy = remedy
    return known


Client = TypeVar("Client", bound=type)

# What a value of a wrong type raises where it is used first.
WRONG_VALUE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def documented(client: Client) -> Client:
    """Make the public methods of a class raise an InvalidInputError for a value of a wrong type.

    A call with missing or unknown arguments stays a TypeError.
    """
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(client, name, _documented(method))
    return client


def _documented(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def iterate(*args: object, **kwargs: object) -> AsyncIterator[Any]:
            try:
                async with aclosing(method(*args, **kwargs)) as results:
                    async for result in results:
                        yield result
            except WRONG_VALUE as error:
                refuse(method, error)

        return iterate
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def wait(*args: object, **kwargs: object) -> object:
            running = method(*args, **kwargs)
            try:
                return await running
            except WRONG_VALUE as error:
                refuse(method, error)

        return wait

    if inspect.isgeneratorfunction(method):

        @wraps(method)
        def each(*args: object, **kwargs: object) -> Iterator[Any]:
            try:
                yield from method(*args, **kwargs)
            except WRONG_VALUE as error:
                refuse(method, error)

        return each

    signature = inspect.signature(method)

    @wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return method(*args, **kwargs)
        except WRONG_VALUE as error:
            signature.bind(*args, **kwargs)
            refuse(method, error)

    return call


def refuse(method: Callable[..., Any], error: Exception) -> NoReturn:
    """Raise what a method raised for a value of a wrong type, as an InvalidInputError."""
    if isinstance(error, SecondBrainError | UnknownArgumentError):
        raise error
    known = translate(error)
    if type(known) is SecondBrainError:
        known = InvalidInputError(str(known))
    known.args = (f"{method.__name__}(): {known}",)
    raise known from redacted(error)


def http_status(error: Exception, *, has_users_token: bool = False) -> int:
    """Return the HTTP status with which a server answers its client when this was raised.

    What the server itself has wrong, such as its key, is a 500. `has_users_token` says that the
    call was made with the token of that client, whose fault a refusal then is: 401 and 403.
    """
    known = translate(error)
    if has_users_token and isinstance(known, AuthenticationError):
        return 401
    if has_users_token and isinstance(known, PermissionDeniedError):
        return 403
    return known.http_status


def _from_code(
    code: str | None, message: str, *, hint: str | None, status: int | None = None
) -> SecondBrainError:
    # `details` stays out: PostgreSQL prints whole rows there ("Failing row contains …").
    if code is None and status is not None:
        code = str(status)
    if status is not None and 200 <= status <= 299:
        return UnexpectedAnswerError("the answer could not be read", code=code)
    remedy = _REMEDIES.get(code or "") or _REMEDIES.get(str(status))
    if code in ("42883", "PGRST202"):  # the list of arguments is longer than a message
        message = _LONG_ARGUMENTS.sub("(…)", message)
    if hint and (code == "42501" or hint.startswith("To add it: ")):
        # Our functions say there what to do.
        remedy, hint = hint, None
    if code == "42883":  # Postgres asks for casts
        hint = None
    text = safe_message(f"{message} ({hint})" if hint else message)
    if code == "22023" and _UNKNOWN_ROLE.search(message):
        return AuthenticationError(text, code=code)
    if code in ("22000", "22023") and _DIMENSIONS.search(message):
        return DimensionMismatchError(text, code=code)
    if code is None and _GATEWAY_REFUSAL.search(message):
        return AuthenticationError(text)
    if code == "0A000" and (wanted := _NEEDED_MODULE.search(hint or "")):
        return ModuleMissingError(message, module=wanted[1], code=code)
    if (module := _missing_module(code, message)) is not None:
        return ModuleMissingError(text, module=module, code=code)
    # Other codes than Postgres's and PostgREST's are a gateway's, whose status says more.
    wider = code[:2] if code is not None and len(code) == 5 else str(status)
    known = _CLASSES.get(code or "") or (_STATE_CLASSES | _CLASSES).get(wider, SecondBrainError)
    return known(text or "no message", code=code, remedy=remedy)


def _missing_module(code: str | None, message: str) -> str | None:
    """Return the module of the function, table or type that does not exist; None for core."""
    named = _NAMED.search(message) if code in _NO_SUCH_OBJECT else None
    if named is None:
        return None
    return module_of(named[1])


def _from_psycopg(error: "psycopg.Error") -> SecondBrainError:
    import psycopg
    import psycopg_pool

    if error.sqlstate is not None:
        message = error.diag.message_primary or str(error)
        return _from_code(error.sqlstate, message, hint=error.diag.message_hint)
    # libpq quotes pieces of the connection string: of a password with an @, as the host's name.
    original = str(error)
    text = safe_message(QUOTED.sub('"…"', original))
    if isinstance(error, psycopg.DataError) or "cannot adapt" in original:
        return InvalidInputError(text)
    if _WRONG_CONNECTION_STRING.search(original):
        return ConfigurationError(text, remedy="Check the connection string.")
    if "authentication failed" in original or "no password supplied" in original:
        return AuthenticationError(text)
    if isinstance(error, psycopg_pool.PoolClosed):
        return UnavailableError(text, remedy="Open the pool before, and search while it is open.")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return UnavailableError(text)
    return SecondBrainError(text)
