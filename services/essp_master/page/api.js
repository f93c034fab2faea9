// The master's API, which `essp job` also uses. Keeps only the token, and only while the tab is open.

const TOKEN = "token";
const READ_MS = 15_000; // timeout of reads; requests that change something have none

/** A request that failed. `status`: the HTTP status, 0 if there was no answer. `errors`: the fields that are wrong. */
export class Refused extends Error {
  constructor(status, detail, errors = []) {
    super(detail);
    this.status = status;
    this.errors = errors;
  }
}

/** The header with the token, if there is one. */
export function authorized() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** The API path of a job, or of something below it. */
export const jobPath = (name, rest = "") => `v1/jobs/${encodeURIComponent(name)}${rest}`;

/** Decodes a part of an address. One that is not encoded correctly is returned unchanged. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Calls the API and returns its answer. Throws `Refused`, for reads also on timeout. */
export async function ask(path, { method = "GET", body, type = "application/yaml", headers = {} } = {}) {
  headers = { ...headers, ...authorized() };
  // A page of another site can send forms and requests without a content type, but none like this.
  if (method !== "GET") headers = { ...headers, "Content-Type": body === undefined ? "application/json" : type };
  let answer;
  try {
    answer = await fetch(path, { method, body, headers, signal: method === "GET" ? AbortSignal.timeout(READ_MS) : null });
  } catch {
    throw new Refused(0, "The master does not answer.");
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found.detail || answer.statusText, found.errors || []);
  return found;
}

/** Takes the token out of the address that `essp run --serve` prints (`#token=...`), so that it is not visible, and
 * neither in the history nor in links. */
export function tokenOfAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  useToken(decoded(found[1]));
  history.replaceState(null, "", "#/");
}

/** Whether there is a token. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Sends this token from now on; empty: none. */
export function useToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}
