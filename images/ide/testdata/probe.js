// Prints as JSON what works of the IDE's native parts. The argument is a shell.
"use strict";
const { execFileSync, fork, spawnSync } = require("node:child_process");
const fs = require("node:fs");
const server = "/opt/codehub-ide/code-server/";
const vscode = server + "lib/vscode/node_modules/";

if (process.send) {
	process.send(process.execPath + " " + process.env.LD_LIBRARY_PATH);
	return;
}

async function main() {
	const found = {};
	const pty = require(vscode + "node-pty").spawn(process.argv[2], ["-c", "echo $((6 * 7)) $(id -u)"], {});
	let out = "";
	pty.onData((data) => { out += data; });
	found.terminal = await new Promise((done) => pty.onExit(() => done(out.trim())));
	const rg = fs.readdirSync(vscode + "@vscode/ripgrep-universal/bin").map((dir) => `${vscode}@vscode/ripgrep-universal/bin/${dir}/rg`);
	found.ripgrep = execFileSync(rg[0], ["--only-matching", "codehub"], { input: "a codehub b" }).toString().trim();
	found.fork = await new Promise((done, fail) => fork(__filename).on("message", done).on("error", fail));
	found.argon2 = (await require(server + "node_modules/argon2").hash("x")).slice(0, 9);
	found.watcher = typeof require(vscode + "@parcel/watcher").subscribe;
	found.spdlog = typeof require(vscode + "@vscode/spdlog").createRotatingLogger;
	found.watchdog = typeof require(vscode + "@vscode/native-watchdog").start;
	const remote = spawnSync(server + "lib/vscode/bin/remote-cli/code-server", ["--version"]);
	found.remote = remote.error?.message ?? String(remote.stdout).split(" ", 1)[0];
	const local = spawnSync("/opt/codehub-ide/bin/code-server", ["--version"]);
	found.local = local.error?.message ?? String(local.stdout).includes(" with Code ");
	console.log(JSON.stringify(found));
	process.exit();
}

main().catch((err) => {
	console.error(err);
	process.exit(1);
});
