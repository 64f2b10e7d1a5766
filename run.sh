#!/bin/sh
# Everything a fresh machine needs: ./run.sh demo | test | check | bench
#
# Makes .venv beside this file and installs into it, then runs. Needs a Python of at least 3.11 and
# nothing else: without the venv module it borrows virtualenv through pip, without pip it asks apt.
# A second run finds its stamp and starts at once. PYTHON=/path/to/python picks the interpreter.
set -eu
cd "$(dirname "$0")"
python=.venv/bin/python

usage() {
    cat <<'END'
usage: ./run.sh COMMAND [ARGUMENTS]

  demo    make a small shop, let it meet failures, and say what to type next; ARGUMENTS: a FOLDER for it
  test    format, lint, types and all tests; ARGUMENTS go to pytest
  check   format, lint, types and the fast tests, on SQLite, in about a minute; ARGUMENTS go to pytest
  bench   measure, side by side with other libraries; ARGUMENTS go to the benchmark
END
}

say() { echo "run.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    candidates=${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}
    for candidate in $candidates; do
        if is_recent "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer found (tried $candidates); install one or set PYTHON=/path/to/python3"
}

make_venv() {
    host=$(find_python)
    rm -rf .venv .venv-boot
    say "making .venv with $("$host" -V)"
    if "$host" -m venv .venv >/dev/null 2>&1; then return; fi

    # Debian's python3 has no ensurepip. A partial .venv was left behind.
    rm -rf .venv
    if "$host" -m pip --version >/dev/null 2>&1; then
        # --target is outside the environment that PEP 668 protects, so no flag has to override it.
        say "the venv module is incomplete; borrowing virtualenv through pip"
        "$host" -m pip install --quiet --target .venv-boot virtualenv
        PYTHONPATH=.venv-boot "$host" -m virtualenv --quiet .venv
        rm -rf .venv-boot
        return
    fi

    command -v apt-get >/dev/null 2>&1 || fail "$host has neither venv nor pip; install one of them and run again"
    [ "$(id -u)" = 0 ] || fail "$host has neither venv nor pip; run once as root: apt-get install python3-venv"
    say "neither venv nor pip; installing python3-venv with apt"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >&2
    "$host" -m venv .venv || fail "$host still cannot make a venv; set PYTHON to one that can"
}

# The stamp holds what the installation depended on: the project file and where the checkout lives.
wanted() { pwd; cat pyproject.toml; }
is_installed() { [ -f ".venv/.installed-$1" ] && [ "$(wanted)" = "$(cat ".venv/.installed-$1")" ]; }

install() {  # install NAME REQUIREMENT [NAME THAT INCLUDES IT]
    if is_recent "$python" && { is_installed "$1" || is_installed "${3:-$1}"; }; then return; fi
    if ! is_recent "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then make_venv; fi
    say "installing $2"
    "$python" -m pip install --quiet --disable-pip-version-check --editable "$2"
    wanted >".venv/.installed-$1"
}

inspect() {
    # Hundreds of processes are started that read bytecode and may write none, see tests/conftest.py.
    unset PYTHONDONTWRITEBYTECODE
    "$python" -m compileall -q src
    "$python" -m ruff format --check .
    "$python" -m ruff check .
    set -- src
    if [ -d examples ]; then set -- "$@" examples; fi
    "$python" -m mypy "$@"
}

# The store's contract is also tested on an older major of Postgres: the distribution's package, unpacked into .venv and
# not installed. Without it the run goes on, and says so here and in its summary.
find_older_postgres() {
    if [ -n "${REDRIVE_TEST_POSTGRES_OLD:-}" ]; then return; fi
    for folder in /usr/lib/postgresql/1[4-7]/bin; do
        if [ -x "$folder/initdb" ]; then return; fi
    done
    unpack older-postgres --yes --no-install-recommends --download-only --reinstall install postgresql-15
    for folder in .venv/older-postgres/usr/lib/postgresql/*/bin; do
        if [ -x "$folder/initdb" ]; then
            REDRIVE_TEST_POSTGRES_OLD=$(pwd)/$folder
            export REDRIVE_TEST_POSTGRES_OLD
            return
        fi
    done
    say "NO OLDER POSTGRES: apt has no package postgresql-15 to give; the contract is tested on the newest alone"
}

# Prometheus' own tool tries the alert rules. The same way, and as said of Postgres.
find_promtool() {
    if [ -n "${REDRIVE_TEST_PROMTOOL:-}" ] || command -v promtool >/dev/null; then return; fi
    unpack prometheus download prometheus
    if [ -x .venv/prometheus/usr/bin/promtool ]; then
        REDRIVE_TEST_PROMTOOL=$(pwd)/.venv/prometheus/usr/bin/promtool
        export REDRIVE_TEST_PROMTOOL
        return
    fi
    say "NO PROMTOOL: apt has no package prometheus to give; the alert rules are read by our tests alone"
}

unpack() {  # unpack FOLDER APT-GET'S ARGUMENTS: into .venv/FOLDER
    if [ -d ".venv/$1/usr" ]; then return; fi
    folder=$1
    shift
    (download "$folder" "$@") >/dev/null 2>&1 || rm -rf ".venv/$folder"
}

download() {  # as any user: nothing of the system is changed
    command -v apt-get && command -v dpkg || return 1
    cache=$(pwd)/.venv/$1
    lists=$(pwd)/.venv/apt-lists
    shift
    mkdir -p "$cache/archives/partial"
    cd "$cache/archives"  # where `apt-get download` puts what it gets
    if [ ! -d "$lists" ]; then
        mkdir -p "$lists/partial"
        apt update
    fi
    apt "$@" || return 1
    for package in *.deb; do dpkg -x "$package" "$cache"; done
    rm -rf "$cache/archives"
}

apt() {
    timeout 60 apt-get -o Debug::NoLocking=1 -o "Dir::State::lists=$lists" -o "Dir::Cache=$cache" -o APT::Sandbox::User= "$@"
}

command=${1:-}
if [ $# -gt 0 ]; then shift; fi
case $command in
demo)
    install core . test
    exec "$python" -m redrive.cli demo "$@"
    ;;
test)
    install test '.[test]'
    inspect
    find_older_postgres
    find_promtool
    rm -rf .venv/apt-lists
    # One more than cores: who waits for a process, a server or a lease leaves its core to the others.
    exec "$python" -m pytest -n 3 --dist worksteal --durations=15 "$@"
    ;;
check)
    install test '.[test]'
    inspect
    exec "$python" -m pytest -n 2 --dist worksteal --quiet -m 'not slow' -k 'not postgres' "$@"
    ;;
bench)
    install bench '.[bench]'
    exec "$python" -m bench "$@"
    ;;
help | --help | -h) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
