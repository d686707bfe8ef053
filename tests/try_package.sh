#!/bin/sh
# Installs a wheel or an sdist in an empty environment, and runs what a user runs first, away from the checkout.
#
#     sh tests/try_package.sh dist/graphveil-0.2.0-py3-none-any.whl constraints.txt
set -eu
package=$(realpath "$1")
constraints=$(realpath "$2")
examples=$(realpath "$(dirname "$0")/../examples")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$package[report,evidence]"
run() { echo "\$ graphveil $*"; env/bin/graphveil "$@" >out.txt || { cat out.txt; exit 1; }; tail -n 3 out.txt; }
run --version
run data list
run choose --data social --epsilon 8 --shown-to themselves
run train late-graph --data social --epsilon 8 --out runs/demo
run compare --data social --epsilon 8 --seeds 1 --methods late-graph,dp-mlp,mlp
run predict runs/demo --data social --out classes.csv
run report runs/demo --out report.html
run report runs/demo --for officer --out officer.html
run bench list
run claims list
for example in hospital documents team_ledger; do
  echo "\$ python examples/$example.py"
  env/bin/python "$examples/$example.py" >out.txt || { cat out.txt; exit 1; }
  tail -n 2 out.txt
done
test -s report.html && test -s officer.html && test -s classes.csv
echo "$(basename "$package") works"
