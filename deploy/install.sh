#!/bin/sh
# Installs lmx for you, into a folder of its own, without the rights of root:
#
#   sh install.sh                    from the checkout that this file is in
#   sh install.sh --from SOURCE      a wheel, a folder, a URL, or a name with a version (lmx==0.1.0)
#   sh install.sh --uninstall        removes what it installed, and says what stays
#
# It needs Python 3.11 to 3.14, or uv, which brings a Python. What it installs is what the tests run
# with: the versions of constraints.txt, without what lmx does not use. A second run upgrades.
#
# LMX_INSTALL_DIR is the folder (~/.local/share/lmx), LMX_BIN_DIR has the link (~/.local/bin).

set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# A link in a folder of links, or nothing: nobody else's program is written over.
own_link() { [ -L "$link" ] && [ "$(readlink "$link")" = "$folder/env/bin/lmx" ]; }

# An environment that this script made: nobody else's is written over or removed.
check_environment() {
  [ -e "$folder/env/.lmx-install" ] || fail "$folder/env is not an environment that install.sh made: move it away, or set LMX_INSTALL_DIR"
}

absolute() { case "$1" in /*) say "$1" ;; *) say "$PWD/$1" ;; esac; }

check_machine() {
  case "$(uname -s)" in
    Darwin)
      [ "$(uname -m)" = arm64 ] || fail 'lmx needs a Mac with Apple Silicon; this is an Intel Mac, or a shell that Rosetta runs'
      release=$(sw_vers -productVersion)
      [ "${release%%.*}" -ge 14 ] || fail "lmx needs macOS 14 or newer, and this is $release"
      ;;
    Linux) ;;
    *) fail "lmx runs on macOS and Linux, and this is $(uname -s)" ;;
  esac
}

# The first Python that fits, or nothing. macOS's own is too old, and asks for developers' tools;
# one for Intel, which Rosetta runs, has no Metal.
find_python() {
  for name in python3.13 python3.12 python3.14 python3.11 python3; do
    path=$(command -v "$name" 2>/dev/null) || continue
    [ "$(uname -s)-$path" = Darwin-/usr/bin/python3 ] && continue
    if "$path" -c 'import platform, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15) or (sys.platform, platform.machine()) == ("darwin", "x86_64"))' 2>/dev/null; then
      say "$path"
      return
    fi
  done
}

make_environment() {
  if [ -z "$fresh" ]; then
    # uv makes environments without pip, and may be gone since.
    [ -n "$uv" ] || "$folder/env/bin/python" -m pip --version >/dev/null 2>&1 ||
      "$folder/env/bin/python" -m ensurepip >/dev/null ||
      fail "$folder/env was made by uv, which is not on your PATH any more, and has no pip: put uv on your PATH"
    return
  fi
  mkdir -p "$folder"
  if [ -n "$uv" ]; then
    "$uv" venv --quiet --python "${python:-3.13}" "$folder/env"
  elif ! "$python" -m venv "$folder/env"; then
    rm -rf "$folder/env"
    fail "$python has no module venv. On Debian and Ubuntu: sudo apt-get install python3-venv"
  fi
  : > "$folder/env/.lmx-install"
}

install_packages() {
  if [ -n "$uv" ]; then
    "$uv" pip install --python "$folder/env/bin/python" --compile-bytecode "$@"
  else
    "$folder/env/bin/python" -m pip install --disable-pip-version-check "$@"
  fi
}

install() {
  [ -n "$source" ] || fail 'this file is in no checkout: say what to install (--from SOURCE)'
  check_machine
  if [ -e "$link" ] || [ -L "$link" ]; then
    own_link || fail "$link is there already, from another installation: remove that one first, or set LMX_BIN_DIR"
  fi
  uv=$(command -v uv 2>/dev/null) || uv=
  python=$(find_python)
  [ -n "$uv$python" ] || fail 'there is no Python 3.11 to 3.14, and no uv: install one of them first'
  fresh=yes
  if [ -e "$folder/env" ]; then
    check_environment
    # Its Python may be gone, as after an upgrade of the system.
    if "$folder/env/bin/python" -c '' 2>/dev/null; then fresh=; else rm -rf "$folder/env"; fi
  fi
  # Where it fails, nothing half done is left. Not every shell runs the first after a signal.
  trap '[ -z "$fresh" ] || { rm -rf "$folder/env"; rmdir "$folder" 2>/dev/null || :; }' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  say "Installing lmx from $source into $folder (about 0.8 GB) with ${uv:-$python}."
  make_environment
  if [ -n "$uv" ]; then again=--reinstall; else again=--force-reinstall; fi
  install_packages --no-deps "$again" "$source"
  lists="$folder/env/share/lmx"
  install_packages --no-deps -r "$lists/requirements.txt" -c "$lists/constraints.txt"
  version=$("$folder/env/bin/lmx" --version)
  mkdir -p "$bin"
  ln -sf "$folder/env/bin/lmx" "$link"
  trap - EXIT INT TERM HUP
  say
  say "Installed $version: $link, which leads to $folder/env."
  case ":$PATH:" in
    *":$bin:"*) ;;
    *) say "$bin is not on your PATH. Add it: export PATH=\"$bin:\$PATH\"" ;;
  esac
  if [ "$(uname -s)" = Linux ] && ! ldconfig -p 2>/dev/null | grep -q libopenblas; then
    say 'Prompts are computed several times faster with OpenBLAS (Debian: libopenblas0-pthread).'
  fi
  if [ -z "$fresh" ]; then
    say 'An lmx that runs takes the new version with: lmx restart --supervisor'
  else
    say 'Try it: lmx demo'
  fi
}

# Whether a service starts this lmx.
names_lmx() { [ -e "$1" ] && grep -qF -e "$folder/env/bin/lmx" -e "$link" "$1"; }

uninstall() {
  [ -d "$folder/env" ] || fail "there is no lmx in $folder"
  check_environment
  lmx="$folder/env/bin/lmx"
  works=yes
  "$lmx" --version >/dev/null 2>&1 || works=
  for unit in "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/lmx.service" \
    "$HOME/Library/LaunchAgents/com.lmx.supervisor.plist"; do
    if names_lmx "$unit"; then
      [ -n "$works" ] || fail "$unit starts this lmx, which does not run (its Python may be gone): delete that file, then again"
      "$lmx" service uninstall
    fi
  done
  for unit in /etc/systemd/system/lmx.service /Library/LaunchDaemons/com.lmx.supervisor.plist; do
    if names_lmx "$unit"; then fail "there is a service of the system; first: sudo $lmx service uninstall --system"; fi
  done
  # Exit code 3: it did not run.
  [ -z "$works" ] || "$lmx" stop || [ $? = 3 ]
  if own_link; then rm "$link"; fi
  rm -rf "$folder/env"
  rmdir "$folder" 2>/dev/null || :
  say "Removed lmx from $folder, and $link."
  say "Your configuration, state and converted models stay: ${LMX_HOME:-$HOME/.lmx}, ${LMX_CACHE_DIR:-$HOME/.cache/lmx}."
}

main() {
  [ -z "${SUDO_USER:-}" ] || fail 'sudo is not needed: lmx is installed for the user who runs this'
  folder="${LMX_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/lmx}"
  bin="${LMX_BIN_DIR:-$HOME/.local/bin}"
  folder=$(absolute "$folder")
  bin=$(absolute "$bin")
  link="$bin/lmx"
  here=$(dirname "$0")
  if [ -f "$here/install.sh" ] && [ -f "$here/../pyproject.toml" ]; then
    source=$(cd "$here/.." && pwd)
  else
    source=
  fi
  act=install
  while [ $# -gt 0 ]; do
    case "$1" in
      --from) [ $# -ge 2 ] || fail '--from needs a wheel, a folder, a URL or a name'; source=$2; shift ;;
      --uninstall) act=uninstall ;;
      -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
      *) fail "unknown: $1 (sh install.sh --help)" ;;
    esac
    shift
  done
  "$act"
}

# The last line, so that half of a download does nothing.
main "$@"
