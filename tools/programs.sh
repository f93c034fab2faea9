#!/bin/sh
# Programs of tests that pip does not have: Chromium shows the page, Node runs its code, promtool tests the alerts.
# Installs what is missing where it may (root, on Debian and the like); says what is missing where it may not or cannot.
set -eu

installed() {
	for name in "$@"; do
		if command -v "$name" >/dev/null; then return 0; fi
	done
	return 1
}

missing=
installed chromium chromium-browser google-chrome chrome || missing="$missing chromium"
installed node || missing="$missing nodejs"
installed promtool || missing="$missing prometheus"
[ -n "$missing" ] || exit 0

lacking=$missing
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	# That of prometheus would also start a server.
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	lacking=
	apt-get update -qq || true
	# Singly: where one is not to be had (Ubuntu has no package chromium, a mirror may be away), the others are.
	for package in $missing; do
		apt-get install -qq --no-install-recommends "$package" >/dev/null || lacking="$lacking $package"
	done
fi
[ -z "$lacking" ] || echo "Tests that need these are skipped until they are installed (names of Debian's packages):$lacking" >&2
