package vscode

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"regexp"
)

// The method names and formats in this file are those of the VS Code version in the
// default image. TestCodeServer in internal/web/proxy tests them with the real IDE.

// sign is what a message shows about user activity.
type sign int

const (
	noSign sign = iota
	present
	away
	moved
	scrolled
	rewritten // not by the user at the window
	typed
	printed
)

// Methods of the extension host that its window calls (MainThread* → ExtHost*).
// $onDidChangeWindowFocus and $onFileEvent are not among them, because windows and
// file watchers also send them without a user.
const (
	windowActive      = "$onDidChangeWindowActive" // [true] on a key press or click, [false] one minute after the last
	modelChanged      = "$acceptModelChanged"      // also when a file changes on disk, but then it is not dirty
	modelDirty        = "$acceptDirtyStateChanged" // follows the first change, which is not reported as dirty yet
	modelSaved        = "$acceptModelSaved"
	completion        = "$provideCompletionItems"
	hover             = "$provideHover"
	editorChanged     = "$acceptEditorPropertiesChanged"
	shellPrinted      = "$shellExecutionData" // only with shell integration
	terminalChannel   = "remoteterminal"
	terminalTyped     = "$input"
	requestPromise    = 100 // of the channel protocol
	responseEventFire = 204
)

var (
	isTrue      = []byte("true]")
	byKey       = []byte(`"source":"keyboard"`)
	byMouse     = []byte(`"source":"mouse"`)
	ranges      = []byte(`"visibleRanges":[{`)
	stringEvent = []byte(`,"event":"`)
	idFirst     = []byte(`{"id":`)
)

// signOfHost interprets a message from a window to its extension host.
func signOfHost(m message) sign {
	name, args, ok := hostCall(m.body)
	if !ok {
		return noSign
	}
	switch string(name) {
	case windowActive:
		if bytes.HasSuffix(m.last, isTrue) {
			return present
		}
		return away
	case modelChanged, modelDirty:
		if bytes.HasSuffix(m.last, isTrue) {
			return typed
		}
		return rewritten
	case modelSaved, completion:
		return typed
	case editorChanged:
		if bytes.Contains(args, byKey) || bytes.Contains(args, byMouse) {
			return moved
		}
		if bytes.Contains(args, ranges) {
			return scrolled
		}
	case hover:
		return moved
	case shellPrinted:
		return printed
	}
	return noSign
}

// hostCall parses a call of the extension host's protocol: its kind, a four-byte
// ID, one byte for the object, the method with its length, the arguments.
func hostCall(body []byte) (name, args []byte, ok bool) {
	if len(body) < 7 || body[0] < 1 || body[0] > 4 {
		return nil, nil, false
	}
	rest := body[7:]
	n := int(body[6])
	if n > len(rest) {
		return nil, nil, false
	}
	return rest[:n], rest[n:], true
}

// signOfManagement interprets a message from a window to the server.
func signOfManagement(m message) sign {
	// [100, id, channel, name], then the arguments.
	rest, ok := addressed(m.body, 4, requestPromise)
	if !ok {
		return noSign
	}
	channel, rest, ok := text(rest)
	if !ok || string(channel) != terminalChannel {
		return noSign
	}
	name, rest, ok := text(rest)
	if !ok || string(name) != terminalTyped || answersOnly(inputOf(rest)) {
		return noSign
	}
	return typed
}

// inputOf is the text of a terminal's input: its arguments are [id, text], as
// values or as JSON. It is nil if they have another form.
func inputOf(args []byte) []byte {
	rest, n, ok := value(args, valueArray)
	if ok && n == 1 {
		body, n, ok := value(rest, valueObject)
		var fields []json.RawMessage
		var input string
		if !ok || n > uint64(len(body)) || json.Unmarshal(body[:n], &fields) != nil || len(fields) != 2 || json.Unmarshal(fields[1], &input) != nil {
			return nil
		}
		return []byte(input)
	}
	if !ok || n != 2 {
		return nil
	}
	if rest, _, ok = value(rest, valueInt); !ok {
		return nil
	}
	input, _, ok := text(rest)
	if !ok {
		return nil
	}
	return input
}

// answersOnly reports whether a terminal's input consists only of what the terminal itself
// sends: answers to a program's queries (device attributes, the cursor's position, colours) and
// reports of its focus. A starting shell sends such queries, so the answers do not mean that
// the user typed.
func answersOnly(input []byte) bool {
	for len(input) > 0 {
		n := terminalAnswer.FindIndex(input)
		if n == nil {
			return false
		}
		input = input[n[1]:]
		if len(input) == 0 {
			return true
		}
	}
	return false
}

// terminalAnswer matches one answer: CSI … c, n, R, y or t, CSI I and O, OSC and
// DCS strings. Shift or Control with F3 has the form of a position in row 1, and
// counts as typed.
var terminalAnswer = regexp.MustCompile("^(?:\x1b\\[[?>=][0-9;]*[cRnu]|\x1b\\[[0-9;]*[cn]|\x1b\\[(?:[02-9]|1[0-9]|[2-9][0-9]+)[0-9]*;[0-9]+R|\x1b\\[1;(?:9|[1-9][0-9]+)R" +
	"|\x1b\\[[?]?[0-9;]*\\$y|\x1b\\[[0-9;]*t|\x1b\\[[IO]|\x1b[\\]P][^\x07\x1b]*(?:\x07|\x1b\\\\))")

// signOfServer interprets a message from the server to a window.
func signOfServer(m message) sign {
	// [204, id], then the event. A terminal's output is {"id":…,"event":"output"};
	// other events are not strings.
	rest, ok := addressed(m.body, 2, responseEventFire)
	if !ok {
		return noSign
	}
	event, _, ok := value(rest, valueObject)
	if !ok || !bytes.HasPrefix(event, idFirst) {
		return noSign
	}
	// The ID is a number, so the event is near the beginning.
	if bytes.Contains(event[:min(len(event), 40)], stringEvent) {
		return printed
	}
	return noSign
}

// Types of values in the channel protocol. Each is followed by a length or, for an
// integer, by the value.
const (
	valueString = 1
	valueArray  = 4
	valueObject = 5
	valueInt    = 6
)

// addressed parses the head of a call or a response: an array of size values, of
// which the first two are the kind and an ID.
func addressed(body []byte, size, kind uint64) (rest []byte, ok bool) {
	rest, n, ok := value(body, valueArray)
	if !ok || n != size {
		return nil, false
	}
	rest, n, ok = value(rest, valueInt)
	if !ok || n != kind {
		return nil, false
	}
	rest, _, ok = value(rest, valueInt)
	return rest, ok
}

// value parses the head of a value of the given type.
func value(p []byte, kind byte) (rest []byte, n uint64, ok bool) {
	if len(p) < 2 || p[0] != kind {
		return nil, 0, false
	}
	n, size := binary.Uvarint(p[1:])
	if size <= 0 {
		return nil, 0, false
	}
	return p[1+size:], n, true
}

func text(p []byte) (s, rest []byte, ok bool) {
	rest, n, ok := value(p, valueString)
	if !ok || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n], rest[n:], true
}
