// The description of the API, where calls can be tried: Swagger UI with the page's token.

import { authorized, hasToken, useToken } from "./api.js";

const part = id => document.getElementById(id);
const COLLAPSED = 0;

/** The description as OpenAPI 3.0, the only version that this Swagger UI reads. `here`: the address of the API. */
export const readable = (description, here) => ({ ...description, openapi: "3.0.3", servers: [{ url: here.replace(/\/$/, "") }] });

/** A request with the token, and with a content type that no form of another site can send. */
export function signed(request) {
  const typed = Object.keys(request.headers).some(name => name.toLowerCase() === "content-type");
  if (request.method && request.method !== "GET" && !typed) request.headers["Content-Type"] = "application/json";
  Object.assign(request.headers, authorized());
  return request;
}

function say() {
  part("state").textContent = hasToken() ? "calls carry your token" : "calls carry no token";
}

async function show() {
  const answer = await fetch("openapi.json");
  globalThis.SwaggerUIBundle({
    spec: readable(await answer.json(), new URL(".", location.href).href), domNode: part("swagger"), requestInterceptor: signed,
    deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: COLLAPSED, tryItOutEnabled: true, validatorUrl: null,
  });
}

if (globalThis.document) {
  part("login").addEventListener("submit", event => {
    event.preventDefault();
    useToken(part("token").value.trim());
    part("token").value = "";
    say();
  });
  say();
  show();
}
