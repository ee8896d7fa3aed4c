#!/usr/bin/env bash
# An afternoon's work in the default image, without a network: clones a project in
# each of four languages, builds, tests and debugs it, commits, rebases over a
# conflict and pushes.
set -euo pipefail
cd "$(dirname "$0")"
port=8418
here=$PWD
export GIT_EDITOR=true PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1
git config --global user.name Ann
git config --global user.email ann@example.com

# expect TEXT COMMAND... fails unless the command's output has the text.
expect() {
	local want=$1 got
	shift
	got=$("$@" 2>&1) || { printf '%s\n' "$got" >&2 && echo "failed: $*" >&2 && return 1; }
	grep -qF -- "$want" <<<"$got" || { printf '%s\n' "$got" >&2 && echo "no \"$want\" from: $*" >&2 && return 1; }
}

serve() {
	local project
	for project in projects/*/; do
		project=$(basename "$project")
		git init --quiet --bare "repositories/$project.git"
		cp -R "projects/$project" "seed-$project"
		(
			cd "seed-$project"
			git init --quiet
			git add .
			git commit --quiet --message "Add up prices"
			git push --quiet "$here/repositories/$project.git" main
		)
	done
	python3 server.py "$port" "$here/repositories" >server.log 2>&1 &
	server=$!
	trap 'kill "$server"' EXIT
	for _ in {1..100}; do
		git ls-remote --quiet "http://127.0.0.1:$port/go.git" >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "the Git server does not answer:" >&2
	cat server.log >&2
	return 1
}

try_go() {
	go build -o basket ./cmd/basket
	expect 500 ./basket
	go test ./...
}

try_python() {
	[ -d .venv ] || python3 -m venv .venv
	.venv/bin/pip install --quiet --no-build-isolation . 2>pip.log || { cat pip.log && return 1; }
	.venv/bin/python -m unittest --quiet
	# The debugger stops in the loop, and sees what was added up so far.
	expect 'total is 449' python3 -m pdb -c 'break 8, price == 51' -c continue -c "print('total is', total)" -c 'clear 1' -c quit basket.py
}

try_node() {
	npm install --no-audit --no-fund --offline --silent
	npm test --silent
	debug_node
}

# debug_node stops before the last price is added and reads the total so far.
debug_node() {
	local seen step
	coproc node inspect --port=0 debug.js 2>&1
	# What to wait for, and the answer to it.
	for step in 'debug> |setBreakpoint("basket.js", 5, "price === 51")' 'not loaded yet|cont' 'break in basket.js:5|exec total' '449|.exit'; do
		seen=''
		while [[ $seen != *"${step%%|*}"* ]]; do
			read -r -N 1 -t 20 || { echo "no \"${step%%|*}\" from node inspect: $seen" >&2 && return 1; }
			seen+=$REPLY
		done <&"${COPROC[0]}"
		echo "${step#*|}" >&"${COPROC[1]}"
	done
	wait "$COPROC_PID"
}

try_c() {
	cmake -B build . >/dev/null
	cmake --build build
	ctest --test-dir build --output-on-failure
	# shellcheck disable=SC2016 # gdb's name of the value
	expect '$1 = 449' gdb --batch --quiet --ex 'break basket.c:7 if prices[i] == 51' --ex run --ex 'print total' --ex backtrace build/basket-test
}

# work LANGUAGE FILE does the afternoon's work on one project.
work() {
	local language=$1 file=$2
	git clone --quiet "http://127.0.0.1:$port/$language.git" "work/$language"
	git clone --quiet "http://127.0.0.1:$port/$language.git" "colleague/$language"
	(
		cd "colleague/$language"
		sed -i 's/in cents/in euro cents/' "$file"
		git commit --quiet --all --message "Name the currency"
		git push --quiet
	)
	cd "work/$language"
	"try_$language"

	git switch --quiet --create rounding
	sed -i 's/in cents/in whole cents/' "$file"
	git commit --quiet --all --message "Say that cents are whole"
	git fetch --quiet
	if git rebase --quiet origin/main >rebase.log 2>&1; then
		echo "the rebase met no conflict" >&2
		return 1
	fi
	expect '<<<<<<<' cat "$file"
	sed -i -e '/^<<<<<<</d' -e '/^=======$/,/^>>>>>>>/d' -e 's/in euro cents/in whole euro cents/' "$file"
	expect 'in whole euro cents' cat "$file"
	git add "$file"
	git rebase --continue >rebase.log 2>&1
	rm rebase.log
	"try_$language"
	git switch --quiet main
	git merge --quiet --ff-only rounding
	git push --quiet
	expect '' git diff --exit-code HEAD
	[ "$(git rev-parse HEAD)" = "$(git --git-dir="$here/repositories/$language.git" rev-parse main)" ]
	[ "$(git rev-list --count HEAD)" = 3 ]
	cd "$here"
	echo "done: $language, ${SECONDS} s"
}

serve
work go basket.go
work python basket.py
work node basket.js
work c basket.c
