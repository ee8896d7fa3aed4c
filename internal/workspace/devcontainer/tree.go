package devcontainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/jsonc"
	"go.yaml.in/yaml/v3"
)

type kind int

const (
	null kind = iota
	boolean
	number
	text
	list
	object
)

// node is a value of a file.
type node struct {
	kind  kind
	line  int
	yes   bool
	text  string // also the digits of a number
	items []*node
	keys  []string // of an object, in the order of the file, each once
	of    map[string]*node
}

// field returns a property, nil if there is none.
func (n *node) field(name string) *node {
	if n == nil {
		return nil
	}
	return n.of[name]
}

func (n *node) set(key string, v *node) {
	if _, there := n.of[key]; !there {
		n.keys = append(n.keys, key)
	}
	n.of[key] = v // the last one counts, as everywhere
}

// nothing reports whether the value asks for nothing: null, false, or an empty one.
func (n *node) nothing() bool {
	switch n.kind {
	case boolean:
		return !n.yes
	case text:
		return n.text == ""
	case list:
		return len(n.items) == 0
	case object:
		return len(n.keys) == 0
	}
	return n.kind == null
}

// value returns the value for encoding/json.
func (n *node) value() any {
	switch n.kind {
	case boolean:
		return n.yes
	case number:
		return json.Number(n.text)
	case text:
		return n.text
	case list:
		out := make([]any, 0, len(n.items))
		for _, each := range n.items {
			out = append(out, each.value())
		}
		return out
	case object:
		out := map[string]any{}
		for _, key := range n.keys {
			out[key] = n.of[key].value()
		}
		return out
	}
	return nil
}

// jsonReader reads the tree of a JSON text.
type jsonReader struct {
	content []byte
	dec     *json.Decoder
	at      int // of line
	line    int
	values  int
}

// readJSON reads JSON with comments and commas at the end of lists.
func readJSON(content []byte) (*node, error) {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if !utf8.Valid(content) {
		return nil, &Error{Reason: BadSyntax, Line: 1, Detail: "it is not UTF-8"}
	}
	content = jsonc.ToJSON(content) // which keeps the places of all values
	r := &jsonReader{content: content, dec: json.NewDecoder(bytes.NewReader(content)), line: 1}
	r.dec.UseNumber()
	n, err := r.read(0)
	if err == nil {
		if _, end := r.dec.Token(); !errors.Is(end, io.EOF) {
			err = fmt.Errorf("there is something behind the end of the object")
		}
	}
	var known *Error
	switch {
	case errors.As(err, &known):
		return nil, err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &Error{Reason: BadSyntax, Line: 1 + bytes.Count(content, []byte("\n")), Detail: "it ends too early"}
	case err != nil:
		e := &Error{Reason: BadSyntax, Line: r.where(), Detail: strings.TrimPrefix(err.Error(), "json: ")}
		// A decoder of tokens does not know where its error is.
		var syntax *json.SyntaxError
		if errors.As(json.Unmarshal(content, &json.RawMessage{}), &syntax) {
			e.Line = 1 + bytes.Count(content[:min(max(int(syntax.Offset)-1, 0), len(content))], []byte("\n"))
			e.Detail = syntax.Error()
		}
		return nil, e
	case n.kind != object:
		return nil, &Error{Reason: NoObject, Line: 1}
	}
	return n, nil
}

// where returns the line that was read last.
func (r *jsonReader) where() int {
	to := min(int(r.dec.InputOffset()), len(r.content))
	r.line += bytes.Count(r.content[r.at:to], []byte("\n"))
	r.at = to
	return r.line
}

func (r *jsonReader) read(depth int) (*node, error) {
	t, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &node{line: r.where()}
	if r.values++; r.values > maxValues {
		return nil, &Error{Reason: TooMany, Line: n.line}
	}
	switch t := t.(type) {
	case bool:
		n.kind, n.yes = boolean, t
	case json.Number:
		n.kind, n.text = number, t.String()
	case string:
		n.kind, n.text = text, t
	case json.Delim:
		if depth == maxDepth {
			return nil, &Error{Reason: TooDeep, Line: n.line}
		}
		n.kind = list
		if t == '{' {
			n.kind, n.of = object, map[string]*node{}
		}
		for r.dec.More() {
			if n.kind == list {
				v, err := r.read(depth + 1)
				if err != nil {
					return nil, err
				}
				n.items = append(n.items, v)
				continue
			}
			key, err := r.dec.Token()
			if err != nil {
				return nil, err
			}
			line := r.where()
			v, err := r.read(depth + 1)
			if err != nil {
				return nil, err
			}
			v.line = line
			n.set(key.(string), v)
		}
		if _, err := r.dec.Token(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// readYAML reads a YAML document.
func readYAML(content []byte) (*node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		e := &Error{Reason: BadSyntax, Line: 1, Detail: strings.TrimPrefix(err.Error(), "yaml: ")}
		if _, err := fmt.Sscanf(e.Detail, "line %d:", &e.Line); err == nil {
			_, e.Detail, _ = strings.Cut(e.Detail, ": ")
		}
		return nil, e
	}
	if len(doc.Content) == 0 {
		return nil, &Error{Reason: NoObject, Line: 1}
	}
	values := 0
	n, err := ofYAML(doc.Content[0], 0, &values)
	if err != nil {
		return nil, err
	}
	if n.kind != object {
		return nil, &Error{Reason: NoObject, Line: 1}
	}
	return n, nil
}

func ofYAML(y *yaml.Node, depth int, values *int) (*node, error) {
	line := y.Line
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}
	if *values++; *values > maxValues {
		return nil, &Error{Reason: TooMany, Line: line}
	}
	if depth > maxDepth {
		return nil, &Error{Reason: TooDeep, Line: line}
	}
	n := &node{line: line}
	switch y.Kind {
	case yaml.ScalarNode:
		n.text = y.Value
		switch y.Tag {
		case "!!null":
		case "!!bool":
			n.kind = boolean
			if err := y.Decode(&n.yes); err != nil {
				n.kind = text
			}
		case "!!int", "!!float":
			n.kind = number
		default:
			n.kind = text
		}
	case yaml.SequenceNode:
		n.kind = list
		for _, each := range y.Content {
			v, err := ofYAML(each, depth+1, values)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, v)
		}
	case yaml.MappingNode:
		n.kind, n.of = object, map[string]*node{}
		for i := 0; i+1 < len(y.Content); i += 2 {
			v, err := ofYAML(y.Content[i+1], depth+1, values)
			if err != nil {
				return nil, err
			}
			v.line = y.Content[i].Line
			n.set(y.Content[i].Value, v)
		}
	}
	return n, nil
}
