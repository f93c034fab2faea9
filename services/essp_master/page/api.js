// The API of the master, the same that `essp job` uses. Keeps nothing but the token, and that as long as the tab is open.

const TOKEN = "token";
const READ_MS = 15_000; // for an answer to a question; what changes something may take its time

/** The API said no. `status`: of HTTP, 0 if it did not answer at all. `errors`: the fields that are wrong. */
export class Refused extends Error {
  constructor(status, detail, errors = []) {
    super(detail);
    this.status = status;
    this.errors = errors;
  }
}

/** The header with the token, if one was given. */
export function authorized() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** The path of a job, or of what belongs to it. */
export const jobPath = (name, rest = "") => `v1/jobs/${encodeURIComponent(name)}${rest}`;

/** A part of an address as it was before `encodeURIComponent`; what people wrote otherwise is taken as it is. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What the API answers. Raises `Refused`, of a question also if there is no answer in time. */
export async function ask(path, { method = "GET", body, type = "application/yaml", headers = {} } = {}) {
  headers = { ...headers, ...authorized() };
  // What has no content type, or that of a form, could have been sent by a page of another site.
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

/** Take the token out of the address that `essp run --serve` prints, `#token=...`: it is not to be seen, kept in the
 * history, or sent on with a link. */
export function tokenOfAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  useToken(decoded(found[1]));
  history.replaceState(null, "", "#/");
}

/** Whether a token was given. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Show this token from now on; empty: none. */
export function useToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}
