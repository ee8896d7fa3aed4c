// Runs in the container of build.sh: makes a language pack with the Korean texts of VS Code, as an
// extension of the IDE. Microsoft's pack for this version comes from its gallery alone, so
// the texts are those of earlier versions, from npm packages of another project: one that
// names each text by module and key, and a later one that numbers them, with the sources
// that give each number its English text. texts.json has what both lack, by English text.
//
// A text is taken only if it has the placeholders of the English one; what has no Korean
// text stays English. The build fails if too little is Korean, so that a new version of
// code-server cannot lose it unnoticed.
//
//	node pack.mjs BY_KEY NUMBERED SOURCES
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [byKey, numbered, sources] = process.argv.slice(2).map((folder) => path.resolve(folder));
const vscode = "/opt/codehub-ide/code-server/lib/vscode";
const extensions = path.join(vscode, "extensions");
const language = "ko";

/** The share that must be Korean of the texts that a user sees, and of those of Git and of all other extensions. */
const floors = { workbench: 0.8, git: 0.9, extensions: 0.8 };

/** Modules of what the IDE does not show: AI features, which its settings turn off, the desktop application, the command line. */
const unseen = /chat|mcp|agent|copilot|sessions|electron|\/node\/argv$|serverEnvironmentService$|update\/|surveys\/|welcomeOnboarding\/|userDataSync|remoteTunnel|editTelemetry/i;

const json = (...names) => JSON.parse(fs.readFileSync(path.join(...names), "utf8"));
const texts = async (folder) => (await import(pathToFileURL(path.join(folder, "translations/main.i18n.json.js")))).default;

/** What a translation must have as often as the English text: placeholders, links and the marks of access keys. */
const parts = (text) => (text.match(/\{\d+\}|\[\[|\]\]|\(command:[^)]*\)|&&/g) ?? []).sort().join(" ");
const matches = (korean, english) => typeof korean === "string" && korean !== "" && parts(korean) === parts(english);

/** The English texts of the sources, by number: localize(17, "Text"). */
function* numbersOf(folder) {
	const call = /\blocalize2?\(\s*(\d+),\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\$]|\\.)*`)/g;
	for (const name of fs.readdirSync(folder, { recursive: true })) {
		if (!name.endsWith(".js")) continue;
		for (const [, number, literal] of fs.readFileSync(path.join(folder, name), "utf8").matchAll(call)) {
			yield [Number(number), Function(`return ${literal}`)()];
		}
	}
}

/** Korean by English text, where all places agree. */
async function byEnglish() {
	const korean = await texts(numbered);
	const found = new Map();
	for (const [number, english] of numbersOf(sources)) {
		if (!matches(korean[number], english)) continue;
		found.set(english, found.has(english) && found.get(english) !== korean[number] ? null : korean[number]);
	}
	return found;
}

/** The part of VS Code that a module belongs to; the terminal's has two names. */
const areaOf = (module) => module.split("/").slice(0, 4).join("/").replace(/Contrib$/, "");

/** Texts that were in another module of the same part, by part and key: those with a telling key, and one text. */
function byMovedKey(old) {
	const found = new Map();
	for (const [module, keys] of Object.entries(old)) {
		for (const [key, text] of Object.entries(keys)) {
			const name = areaOf(module) + " " + key;
			found.set(name, key.length <= 12 || (found.has(name) && found.get(name) !== text) ? null : text);
		}
	}
	return found;
}

const own = json(path.dirname(fileURLToPath(import.meta.url)), "texts.json");
const keys = json(vscode, "out/nls.keys.json");
const english = json(vscode, "out/nls.messages.json");
const product = json(vscode, "product.json");
const old = await texts(byKey);
const later = await byEnglish();
const moved = byMovedKey(old);

const unused = new Set(Object.keys(own));
const contents = {};
const messages = [];
const count = { seen: 0, korean: 0, all: 0, allKorean: 0 };
const missing = [];
for (const [module, names] of keys) {
	for (const name of names) {
		const original = english[messages.length];
		const candidates = [old[module]?.[name], own[original], later.get(original)];
		// A short text may mean something else elsewhere; a long one may have changed since.
		if (original.length > 60) candidates.reverse();
		// A translation that is longer belongs to another text that had the key.
		const elsewhere = moved.get(areaOf(module) + " " + name);
		if (elsewhere?.length <= original.length + 4) candidates.push(elsewhere);
		const text = candidates.find((c) => matches(c, original));
		messages.push(text ?? original);
		if (text !== undefined && text === own[original]) unused.delete(original);
		count.all++;
		if (text !== undefined) {
			(contents[module] ??= {})[name] = text;
			count.allKorean++;
		}
		if (unseen.test(module)) continue;
		count.seen++;
		if (text !== undefined) count.korean++;
		else missing.push(`${module}\t${name}\t${original}`);
	}
}
if (unused.size > 0) fail(`texts.json has what is not needed, or has other placeholders: ${[...unused].join("; ")}`);

const folder = path.join(extensions, "codehub-language-pack-ko");
const write = (name, value) => {
	const file = path.join(folder, name);
	fs.mkdirSync(path.dirname(file), { recursive: true });
	fs.writeFileSync(file, typeof value === "string" ? value : JSON.stringify(value));
};
write("translations/main.i18n.json", { version: "1.0.0", contents });

// The extensions' texts are named by key or English text, so those of a later version hold.
const translations = [{ id: "vscode", path: "./translations/main.i18n.json" }];
const extension = { git: [0, 0], extensions: [0, 0] };
for (const name of fs.readdirSync(extensions).sort()) {
	if (!fs.existsSync(path.join(extensions, name, "package.nls.json"))) continue;
	const { publisher, name: id } = json(extensions, name, "package.json");
	if (publisher === "codehub") continue; // it has Korean texts of its own
	const full = `${publisher}.${id}`;
	const source = path.join(numbered, "translations/extensions", `${full}.i18n.json`);
	const originals = json(extensions, name, "package.nls.json");
	const translated = fs.existsSync(source) ? json(source).contents : { package: {} };
	const kept = { bundle: {}, package: {} };
	for (const [text, korean] of Object.entries(translated.bundle ?? {})) {
		if (matches(korean, text)) kept.bundle[text] = korean;
	}
	const group = extension[name] ?? extension.extensions;
	for (const [key, original] of Object.entries(originals)) {
		group[0]++;
		if (!matches(translated.package?.[key], original.message ?? original)) continue;
		group[1]++;
		kept.package[key] = translated.package[key];
	}
	if (Object.keys(kept.package).length === 0) continue;
	const file = `./translations/extensions/${full}.i18n.json`;
	write(file, { version: "1.0.0", contents: kept });
	translations.push({ id: full, path: file });
}

const share = { workbench: count.korean / count.seen, git: extension.git[1] / extension.git[0], extensions: extension.extensions[1] / extension.extensions[0] };
const percent = (value) => `${(100 * value).toFixed(1)} %`;
console.log(`install: Korean texts: ${percent(share.workbench)} of those of the workbench that are seen (${percent(count.allKorean / count.all)} of all), ` +
	`${percent(share.git)} of Git's, ${percent(share.extensions)} of the other extensions'`);
for (const [name, floor] of Object.entries(floors)) {
	if (!(share[name] >= floor)) fail(`only ${percent(share[name])} of the texts of ${name} are Korean, ${percent(floor)} are expected`);
}
if (process.env.MISSING) fs.writeFileSync(process.env.MISSING, missing.join("\n") + "\n");

const digest = createHash("sha256").update(JSON.stringify(messages));
for (const { path: file } of translations) digest.update(fs.readFileSync(path.join(folder, file)));
const pack = {
	name: "language-pack-ko",
	displayName: "한국어",
	description: "VS Code in Korean.",
	publisher: "codehub",
	version: `${product.version}-g${digest.digest("hex").slice(0, 12)}`,
	license: "MIT",
	engines: { vscode: "*" },
	categories: ["Language Packs"],
	contributes: { localizations: [{ languageId: language, languageName: "Korean", localizedLanguageName: "한국어", translations }] },
};
write("package.json", pack);

// What VS Code would write to each home: an entry of languagepacks.json, and below clp/ the
// messages by number. start puts both in place.
const id = `${pack.publisher}.${pack.name}`;
const entry = {
	hash: createHash("md5").update(id).update(pack.version).digest("hex"),
	extensions: [{ extensionIdentifier: { id }, version: pack.version }],
	translations: Object.fromEntries(translations.map((t) => [t.id, path.join(folder, t.path)])),
	label: "한국어",
};
write("languagepack.json", entry);
write("clp/tcf.json", entry.translations);
const generated = `clp/${product.nlsMetadataHash ?? product.commit}`;
write(`${generated}/nls.messages.json`, messages);
write(`${generated}/nls.messages.js`, `globalThis._VSCODE_NLS_MESSAGES=${JSON.stringify(messages)};\nglobalThis._VSCODE_NLS_LANGUAGE=${JSON.stringify(language)};`);

function fail(why) {
	console.error(`korean: ${why}`);
	process.exit(1);
}
