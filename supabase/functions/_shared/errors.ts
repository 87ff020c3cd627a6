// The errors of a call, with the classes, kinds and remedies of the Python package, and the one place
// that turns an answer of supabase-js into one of them.

import {
  CODES,
  type ErrorKind,
  MODULES,
  REMEDIES,
  REMEDIES_OF_CODES,
  VISITORS_REMEDY,
} from "./contract.ts";

/** Anything that second-brain reports. A subclass, or `kind`, says which error it is. */
export class SecondBrainError extends Error {
  static readonly kind: ErrorKind = "error";
  readonly kind: ErrorKind;
  /** What to do. */
  readonly remedy: string;
  /** The SQLSTATE or PostgREST's code; null where there was none. */
  readonly code: string | null;
  /** The HTTP status; 0 without an answer. */
  readonly status: number;

  constructor(
    message: string,
    { remedy, code = null, status = 0 }: {
      remedy?: string;
      code?: string | null;
      status?: number;
    } = {},
  ) {
    super(message);
    this.name = new.target.name;
    this.kind = new.target.kind;
    this.remedy = remedy ?? REMEDIES_OF_CODES[code ?? ""] ?? REMEDIES_OF_CODES[status] ??
      REMEDIES[this.kind];
    this.code = code;
    this.status = status;
  }
}

export { SecondBrainError as SearchError };

export class InvalidInputError extends SecondBrainError {
  static override readonly kind: ErrorKind = "invalid_input";
}
export class DimensionMismatchError extends InvalidInputError {
  static override readonly kind: ErrorKind = "dimension_mismatch";
}
export class MigrationMissingError extends SecondBrainError {
  static override readonly kind: ErrorKind = "migration_missing";
}
export class ModuleMissingError extends MigrationMissingError {
  static override readonly kind: ErrorKind = "module_missing";
}
export class PermissionDeniedError extends SecondBrainError {
  static override readonly kind: ErrorKind = "permission_denied";
}
export class AuthenticationError extends SecondBrainError {
  static override readonly kind: ErrorKind = "authentication_failed";
}
export class SearchTimeoutError extends SecondBrainError {
  static override readonly kind: ErrorKind = "timeout";
}
export class ClientTimeoutError extends SearchTimeoutError {
  static override readonly kind: ErrorKind = "client_timeout";
}
export class UnavailableError extends SecondBrainError {
  static override readonly kind: ErrorKind = "unavailable";
}
export class QuotaExceededError extends SecondBrainError {
  static override readonly kind: ErrorKind = "quota_exceeded";
}
export class ConflictError extends SecondBrainError {
  static override readonly kind: ErrorKind = "conflict";
}
export class UnexpectedAnswerError extends SecondBrainError {
  static override readonly kind: ErrorKind = "unexpected_answer";
}
export class ConfigurationError extends SecondBrainError {
  static override readonly kind: ErrorKind = "configuration";
}

const CLASSES = [
  SecondBrainError,
  InvalidInputError,
  DimensionMismatchError,
  MigrationMissingError,
  ModuleMissingError,
  PermissionDeniedError,
  AuthenticationError,
  SearchTimeoutError,
  ClientTimeoutError,
  UnavailableError,
  QuotaExceededError,
  ConflictError,
  UnexpectedAnswerError,
  ConfigurationError,
];

const CLASS_OF_CODE = new Map(
  CLASSES.flatMap((one) =>
    (CODES[one.kind] ?? "").split(" ").filter(Boolean).map((code) => [code, one] as const)
  ),
);

const LONGEST_MESSAGE = 300; // characters
const DIMENSIONS = /different vector dimensions|expected \d+ dimensions|\d+ dimensions/;
const UNKNOWN_ROLE = /^role ".*" does not exist/;
const LONG_ARGUMENTS = /\((?:[^()]|\([^()]*\)){40,}\)/g;
const NO_SUCH_OBJECT = ["42883", "42P01", "42704", "PGRST202", "PGRST205"];
const NAMED = /\b(?:function|relation|table|type) ["']?(?:\w+\.)?(\w+)/;

/** What supabase-js returns as `error`. */
export interface Failure {
  message?: string;
  code?: string | null;
  hint?: string | null;
}

/** The error of an answer that supabase-js returned. */
export function searchError(failure: Failure, status: number): SecondBrainError {
  const code = failure.code ? String(failure.code) : null;
  if (status === 0) {
    // fetch failed: supabase-js begins its message with the name of the error.
    const message = shortened(failure.message);
    const isAborted = /^(AbortError|TimeoutError)/.test(message);
    return isAborted ? new ClientTimeoutError(message) : new UnavailableError(message);
  }
  if (status >= 200 && status <= 299) {
    // The message is the body that could not be read.
    return new UnexpectedAnswerError("the answer could not be read", { code, status });
  }
  let hint = failure.hint || undefined;
  let remedy: string | undefined;
  if (hint && (code === "42501" || hint.startsWith("To add it: "))) {
    // The functions of second-brain write into the hint what to do.
    [remedy, hint] = [hint, undefined];
  }
  let text = String(failure.message ?? "");
  if (code === "42883" || code === "PGRST202") {
    text = text.replace(LONG_ARGUMENTS, "(…)");
    if (code === "42883") hint = undefined; // Postgres asks for casts
  }
  const message = shortened(hint ? `${text} (${hint})` : text);
  if (code === "22023" && UNKNOWN_ROLE.test(text)) {
    return new AuthenticationError(message, { code, status });
  }
  if ((code === "22000" || code === "22023") && DIMENSIONS.test(text)) {
    return new DimensionMismatchError(message, { code, status });
  }
  const named = NO_SUCH_OBJECT.includes(code ?? "") ? NAMED.exec(text)?.[1] : undefined;
  const module = named && MODULES[named];
  if (module) {
    const told = `${message}; it is of the module ${module}, which is not installed or too old`;
    return new ModuleMissingError(told, {
      remedy: `Install it: \`second-brain migrate --with ${module}\`, or \`second-brain init ` +
        `--with ${module}\` and \`supabase db push\`. If it is there, reload PostgREST with ` +
        "`notify pgrst, 'reload schema'`.",
      code,
      status,
    });
  }
  if (code === "42501" && text.includes("_public_")) remedy ??= VISITORS_REMEDY;
  // Other codes than Postgres's and PostgREST's are a gateway's, whose status says more.
  const known = CLASS_OF_CODE.get(String(code)) ??
    CLASS_OF_CODE.get(code?.length === 5 ? code.slice(0, 2) : String(status)) ??
    SecondBrainError;
  return new known(message, { remedy, code, status });
}

function shortened(message: unknown): string {
  const text = String(message ?? "").replace(/\s+/g, " ").trim();
  if (text.length <= LONGEST_MESSAGE) return text || "no message";
  return `${text.slice(0, LONGEST_MESSAGE - 1)}…`;
}
