// The workspace's status, in the status bar of the IDE. It runs in the browser and asks
// codehub at paths of the workspace's own origin that codehub answers, not the container.
"use strict";

const vscode = require("vscode");

// The IDE's files are at {base}/{product}/static/out/.
const base = String(globalThis._VSCODE_FILE_ROOT).replace(/\/[^/]+\/static\/out\/.*$/, "") + "/_codehub/";
const page = crypto.randomUUID();

/** What codehub said last; undefined until then. */
let state;
let item, timer, closed, timeline;
/** How many unsaved files were reported last. */
let reported = 0;
/** What has happened since the last report that the page does not see (internal/web/proxy/ide.js); else "". */
let used = "";
/** How long after a change they are reported, in ms: what the IDE saves automatically, a second after it, needs no report. */
const reportAfter = 2000;
/** When the idle stop is of which the user was told, in ms. The time moves a little while it is the same stop. */
let told = 0;
const sameStop = 30000;

async function send(path, body, signal) {
	const response = await fetch(base + path, {
		method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
	});
	return response.json();
}

/**
 * How many files are not saved. VS Code knows a file that it shows again after a start as a
 * tab; it is a document only once its editor is used.
 */
function unsaved() {
	const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter((tab) => tab.isDirty);
	const files = new Set(tabs.map((tab) => String(tab.input?.uri ?? tab.input?.modified ?? tab.label)));
	return Math.max(files.size, vscode.workspace.textDocuments.filter((d) => d.isDirty).length);
}

async function poll() {
	clearTimeout(timer);
	try {
		const files = unsaved(), body = { page, unsaved: files, used };
		used = "";
		const next = await send("state", body);
		reported = files;
		show(next);
	} catch {
		// The page itself tells its user about a lost connection.
	}
	again();
}

/**
 * Shows what codehub has just told the page, which loads before this (internal/web/proxy/ide.js).
 * Asks codehub if the page does not say it, or if there is something to report.
 */
async function begin() {
	const channel = new BroadcastChannel("codehub " + base);
	const known = await new Promise((resolve) => {
		channel.onmessage = (event) => { if (event.data !== "state") resolve(event.data); };
		channel.postMessage("state");
		setTimeout(resolve, 200);
	});
	channel.close();
	if (!known?.texts || unsaved() > 0) return poll();
	show(known);
	again();
}

function again() {
	clearTimeout(timer);
	if (!closed) timer = setTimeout(poll, 1000 * (state?.poll_seconds ?? 20));
}

function show(next) {
	state = next;
	addTimeline();
	// Guests have no commands to stop a workspace or to keep it awake.
	vscode.commands.executeCommand("setContext", "codehub.owner", Boolean(state.open && !state.guest));
	if (!state.open) {
		item.hide();
		return;
	}
	item.text = `$(vm) ${state.status}`;
	item.tooltip = state.tooltip;
	item.backgroundColor = state.ending ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
	item.show();
	const at = Date.parse(state.stops_at);
	if (state.ending && Math.abs(at - told) > sameStop) {
		told = at;
		// A guest keeps the workspace running by using it.
		const choices = state.guest ? [] : [state.texts.stay, state.texts.keep_awake];
		vscode.window.showWarningMessage(state.ending, ...choices).then((choice) => {
			if (choice === state.texts.stay) return stay();
			if (choice === state.texts.keep_awake) return keepAwake();
		});
	}
}

/**
 * Opens a terminal and the README when the IDE of a repository is opened the first time. A file in
 * the home says that it was: a user who has closed them does not get them again, in another browser
 * either.
 */
async function firstView() {
	const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
	if (!state?.terminal || !folder) return;
	const file = folder.with({ path: state.terminal });
	try {
		await vscode.workspace.fs.stat(file);
	} catch (error) {
		if (error.code !== "FileNotFound") return;
		await vscode.workspace.fs.writeFile(file, new Uint8Array());
		if (vscode.window.terminals.length === 0) vscode.window.createTerminal().show(true);
		await openReadme(folder);
	}
}

async function openReadme(folder) {
	if (vscode.window.tabGroups.all.some((group) => group.tabs.length > 0)) return;
	const files = (await vscode.workspace.fs.readDirectory(folder)).filter(([, type]) => type & vscode.FileType.File).map(([name]) => name);
	const name = files.find((name) => /^readme\.md$/i.test(name)) ?? files.find((name) => /^readme(\.(adoc|rst|txt))?$/i.test(name));
	if (name) await vscode.window.showTextDocument(folder.with({ path: `${folder.path}/${name}` }), { preview: true });
}

async function act(path, body) {
	try {
		const answer = await send(path, body);
		if (answer.message) vscode.window.showErrorMessage(answer.message);
	} catch (error) {
		vscode.window.showErrorMessage(`codehub: ${error.message}`);
	}
	return poll();
}

const stay = () => act("stay", {});

async function keepAwake() {
	if (!state || state.guest) return;
	const items = state.keep_awake.map((k) => ({ label: k.text, seconds: k.seconds }));
	const choice = await vscode.window.showQuickPick(items, { title: state.texts.keep_awake });
	if (choice) return act("keep-awake", { seconds: choice.seconds });
}

async function stop() {
	if (!state || state.guest) return;
	if (unsaved() > 0) {
		const choice = await vscode.window.showWarningMessage(state.texts.stop_unsaved, { modal: true }, state.texts.stop);
		if (choice !== state.texts.stop) return;
	}
	return act("stop", {});
}

// Both lead to codehub's own address. A link to the IDE's own host needs no question first.
const dashboard = () => vscode.env.openExternal(vscode.Uri.parse(base + "dashboard"));

async function menu() {
	if (!state?.open) return;
	const t = state.texts;
	const changes = [
		{ label: t.stay, run: stay },
		{ label: t.keep_awake, run: keepAwake },
		{ label: t.stop, run: stop },
	];
	const choice = await vscode.window.showQuickPick([...(state.guest ? [] : changes), { label: t.dashboard, run: dashboard }], { title: state.status });
	return choice?.run();
}

/** The scheme of files of backups: the path in the workspace, and the id of the backup as the query. */
const backupScheme = "codehub-backup";
/** How many versions of a file are fetched at once, unless VS Code says it. */
const versionsAtOnce = 20;

/** Shows the versions of a file in the workspace's backups in the Timeline; only the owner gets them. */
function addTimeline() {
	if (timeline || !state.open || !state.texts.versions) return;
	timeline = vscode.Disposable.from(
		vscode.workspace.registerTextDocumentContentProvider(backupScheme, { provideTextDocumentContent: versionText }),
		vscode.commands.registerCommand("codehub.compareVersion", compareVersion),
		vscode.workspace.registerTimelineProvider("vscode-remote", { id: "codehub.backups", label: state.texts.versions, provideTimeline: versionsOf }),
	);
}

async function versionsOf(uri, options, token) {
	const items = [];
	const aborts = new AbortController();
	token.onCancellationRequested(() => aborts.abort());
	const { limit } = options;
	const enough = () => typeof limit === "object" ? items.at(-1)?.timestamp <= limit.timestamp : items.length >= (limit ?? versionsAtOnce);
	let cursor = options.cursor;
	do {
		const page = await send("versions", { path: uri.path, cursor: cursor ?? "" }, aborts.signal);
		if (!page.versions) return; // refused, because guests may use the workspace
		items.push(...page.versions.map((version) => timelineItem(uri, version)));
		cursor = page.cursor;
	} while (cursor && !enough());
	return { items, paging: cursor ? { cursor } : undefined };
}

function timelineItem(uri, version) {
	const item = new vscode.TimelineItem(version.label, Date.parse(version.at));
	item.id = version.backup;
	item.description = version.detail;
	item.iconPath = new vscode.ThemeIcon(version.removed ? "trash" : "history");
	if (version.removed) return item;
	item.command = { command: "codehub.compareVersion", title: version.label, arguments: [uri, version.backup, version.label] };
	return item;
}

function compareVersion(uri, backup, label) {
	const name = uri.path.slice(uri.path.lastIndexOf("/") + 1);
	return vscode.commands.executeCommand("vscode.diff", uri.with({ scheme: backupScheme, authority: "", query: backup }), uri, `${name} (${label}) ↔ ${name}`);
}

async function versionText(uri) {
	const answer = await send("version", { path: uri.path, backup: uri.query });
	return answer.message ? `— ${answer.message}` : answer.text;
}

exports.activate = (context) => {
	item = vscode.window.createStatusBarItem("codehub.status", vscode.StatusBarAlignment.Left, 1000);
	item.name = "codehub";
	item.command = "codehub.menu";
	let soon;
	context.subscriptions.push(
		item,
		vscode.commands.registerCommand("codehub.menu", menu),
		vscode.commands.registerCommand("codehub.stay", stay),
		vscode.commands.registerCommand("codehub.keepAwake", keepAwake),
		vscode.commands.registerCommand("codehub.stop", stop),
		vscode.commands.registerCommand("codehub.dashboard", dashboard),
		// The dashboard asks before it stops a workspace with unsaved files.
		vscode.workspace.onDidChangeTextDocument((e) => {
			if (e.document.isDirty) used ||= "typing"; // not when the file changed on the disk
			changed();
		}),
		vscode.window.onDidWriteTerminalData(() => { used = "output"; }),
		vscode.window.tabGroups.onDidChangeTabs(changed),
		vscode.workspace.onDidSaveTextDocument(changed),
		{ dispose: () => { closed = true; clearTimeout(timer); clearTimeout(soon); timeline?.dispose(); } },
	);
	function changed() {
		if (unsaved() === reported) return;
		soon ??= setTimeout(() => {
			soon = undefined;
			if (unsaved() !== reported) poll();
		}, reportAfter);
	}
	return begin().then(firstView);
};
