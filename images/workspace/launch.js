// Starts code-server in this one process, with VS Code loading beside it.
//
// code-server's own entry point runs a second process that it watches, and
// loads VS Code only when the first page is asked for. Here the container is
// what is watched, and a workspace is opened to be used: without the second
// process, and with the loading under way from the beginning, the first page
// comes about 200 ms sooner and memory after it is about 35 MB less.
"use strict";

const root = "/usr/lib/code-server";

// VS Code ends when the process that this names is gone.
process.env.CODE_SERVER_PARENT_PID = String(process.pid);
const vscode = import(`${root}/lib/vscode/out/server-main.js`).then((m) => m.loadCodeWithNls());

const { parse, readConfigFile, setDefaults } = require(`${root}/out/node/cli`);
const { runCodeServer } = require(`${root}/out/node/main`);

async function main() {
	const given = parse(process.argv.slice(2));
	const args = await setDefaults(given, await readConfigFile(given.config));
	await vscode; // /healthz answers once the first page can
	const server = await runCodeServer(args);
	for (const signal of ["SIGTERM", "SIGINT"]) {
		process.once(signal, () => Promise.resolve(server.dispose()).finally(() => process.exit(0)));
	}
}

main().catch((err) => {
	console.error(err);
	process.exit(1);
});
