#!/usr/bin/env bash
# Downloads the text sources from Debian's packages and unpacks them (not installs them) under
# build/models/sources. Usage: models/train/fetch_sources.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir="$(mkdir -p "${1:-build/models/sources}" && cd "${1:-build/models/sources}" && pwd)"
packages=(r-cran-janeaustenr wordnet-base bible-kjv bible-kjv-text dict-devil)

cd "$dir"
for package in "${packages[@]}"; do
  if compgen -G "${package}_*.deb" >/dev/null; then
    echo "have $package"
    continue
  fi
  echo "download $package"
  apt-get download -qq "$package" 2>/dev/null || {
    apt-get update -qq
    apt-get download -qq "$package"
  }
done
for package in "${packages[@]}"; do
  dpkg-deb -x "${package}"_*.deb root
done
# The Bible is stored in its reader's own compressed form; the reader prints it a verse a line.
# (It needs libreadline8; apt-get install bible-kjv brings it.)
root/usr/bin/bible -f -p root/usr/lib -d bible.data "gen1:1-rev22:21" >kjv.txt
echo "sources are in $dir"
