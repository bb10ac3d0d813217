# shellcheck shell=bash
# Sourced by the set-up scripts, from the project's folder. Gets Debian packages without installing
# them: everything lands below .cache/, the system's own package state is only read.

root=$PWD
apt_state=$root/.cache/apt

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# apt_get ARGS...: apt with its lists and downloads in the project, as root where $as_root says how.
as_root=
apt_get() {
    # shellcheck disable=SC2086 # empty, or a command and its option
    $as_root apt-get -qq -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
        -o Dir::State::lists="$apt_state/lists" -o Dir::Cache="$apt_state/cache" "$@"
}

# with_libraries PACKAGE...: their names, and those of the libraries of theirs that are missing here.
with_libraries() {
    local packages
    # A rehearsed installation names what is missing; it changes nothing and needs no rights.
    packages=$(apt_get --simulate --no-install-recommends install "$@" | sed -n 's/^Inst \([^ ]*\) .*/\1/p') || return 1
    echo "${packages:-$*}"
}

# try_unpack FOLDER CHOOSE PACKAGE...: what CHOOSE makes of the packages, into FOLDER.
try_unpack() {
    local folder=$1 choose=$2 packages deb link
    shift 2
    rm -rf "$folder" "$folder.debs"
    mkdir -p "$apt_state/lists/partial" "$apt_state/cache/archives/partial" "$folder" "$folder.debs"
    apt_get update >&2 || return 1
    packages=$("$choose" "$@") || return 1
    # shellcheck disable=SC2086 # one word a package
    set -- $packages
    say "downloading $* from the distribution"
    (cd "$folder.debs" && apt_get download "$@" >&2) || return 1
    for deb in "$folder.debs"/*.deb; do dpkg-deb -x "$deb" "$folder" || return 1; done
    # Links to files of the system as it would be, to where they are.
    find "$folder" -lname '/*' | while read -r link; do ln -sfn "$folder$(readlink "$link")" "$link"; done
    rm -rf "$folder.debs" "$apt_state" # the lists are large, and quick to get again
    say "unpacked into ${folder#"$root"/}; nothing was installed"
}

get() { # as try_unpack; without root if that works, else the same download with root's rights
    command -v apt-get >/dev/null ||
        die "$3 is missing and this system has no apt-get: install it with your package manager, then try again"
    try_unpack "$@" && return
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then
        say "trying the download once more with root's rights (sudo)"
        as_root="sudo -n"
        try_unpack "$@" && return
    fi
    die "cannot get $3: see apt-get's error above, or install it yourself and try again"
}

# unpack FOLDER PACKAGE...: the packages, and the libraries of theirs missing here, into FOLDER.
unpack() { get "$1" with_libraries "${@:2}"; }

# unpack_alone FOLDER PACKAGE...: the packages and nothing else into FOLDER.
unpack_alone() { get "$1" echo "${@:2}"; }
