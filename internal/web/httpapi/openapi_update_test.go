package httpapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/workspace"
)

var update = flag.Bool("update", false, "write the types of the API into api/openapi.json")

// ordered is a JSON object with the order of its members.
type ordered []member

type member struct {
	key   string
	value any // an ordered object, a list or a json.RawMessage
}

func (o ordered) get(key string) any {
	if i := slices.IndexFunc(o, func(m member) bool { return m.key == key }); i >= 0 {
		return o[i].value
	}
	return nil
}

func (o *ordered) set(key string, value any) {
	if i := slices.IndexFunc(*o, func(m member) bool { return m.key == key }); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{key, value})
}

func (o *ordered) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		var value any = raw
		if raw[0] == '{' {
			var inner ordered
			if err := json.Unmarshal(raw, &inner); err != nil {
				return err
			}
			value = inner
		}
		*o = append(*o, member{key.(string), value})
	}
	return nil
}

func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", plainJSON(m.key), plainJSON(m.value))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// plainJSON is JSON without escapes for HTML.
func plainJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// The fields of the document, which of them are required, and its lists of values come from the Go
// types: with -update they are written into api/openapi.json, with the comment of each new field as
// its description. What people wrote there stays.
func TestDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	const path = "../../../api/openapi.json"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d ordered
	if err := json.Unmarshal(old, &d); err != nil {
		t.Fatal(err)
	}
	components := d.get("components").(ordered)
	schemas := components.get("schemas").(ordered)
	comments := fieldComments(t)
	for i, s := range schemas {
		if v, ok := wire()[s.key]; ok {
			schemas[i].value = withFields(s.value.(ordered), reflect.TypeOf(v), comments)
		}
	}
	var b bytes.Buffer
	if err := json.Indent(&b, plainJSON(d), "", "  "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	if bytes.Equal(old, b.Bytes()) {
		return
	}
	if !*update {
		t.Fatal("api/openapi.json does not have the fields of package api: run make docs")
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// withFields gives a schema the fields of a type.
func withFields(s ordered, typ reflect.Type, comments map[string]string) ordered {
	have, _ := s.get("properties").(ordered)
	var properties ordered
	required := []string{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if options == "" {
			required = append(required, name)
		}
		property, ok := have.get(name).(ordered)
		if !ok {
			request := string(plainJSON(s.get("additionalProperties"))) == "false"
			property = schemaOf(f.Type, options != "omitempty" || request)
			if about := comments[typ.Name()+"."+f.Name]; about != "" {
				property.set("description", json.RawMessage(plainJSON(about)))
			}
		}
		properties.set(name, withValues(property, typ.Name()+"."+name))
	}
	// People chose the order of what is there.
	place := func(name string, of ordered) int {
		if i := slices.IndexFunc(of, func(m member) bool { return m.key == name }); i >= 0 {
			return i
		}
		return len(of)
	}
	slices.SortStableFunc(properties, func(a, b member) int { return place(a.key, have) - place(b.key, have) })
	var order []string
	_ = json.Unmarshal(plainJSON(s.get("required")), &order)
	at := func(name string) int {
		if i := slices.Index(order, name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(required, func(a, b string) int { return at(a) - at(b) })
	if len(required) > 0 {
		s.set("required", json.RawMessage(plainJSON(required)))
	}
	if len(properties) > 0 {
		s.set("properties", properties)
	}
	return s
}

// withValues gives a property the values that the code knows.
func withValues(p ordered, name string) ordered {
	var values []any
	switch name {
	case "Workspace.phase":
		values = listOf(workspace.Phases())
	case "Workspace.operation":
		values = listOf(workspace.Operations())
	case "Workspace.error_reason":
		values = listOf(workspace.ErrorReasons())
	default:
		return p
	}
	var have []any
	_ = json.Unmarshal(plainJSON(p.get("enum")), &have)
	keep := slices.DeleteFunc(slices.Clone(have), func(v any) bool { return v != nil && !slices.Contains(values, v) })
	for _, v := range values {
		if !slices.Contains(keep, v) {
			keep = append(keep, v)
		}
	}
	if len(keep) != len(have) || !slices.Equal(keep, have) {
		if i := slices.Index(keep, nil); i >= 0 { // null stays last
			keep = append(slices.Delete(keep, i, i+1), nil)
		}
		p.set("enum", json.RawMessage(plainJSON(keep)))
	}
	return p
}

func listOf[S ~string](in []S) (out []any) {
	for _, v := range in {
		out = append(out, string(v))
	}
	return out
}

// schemaOf is the schema of a field.
func schemaOf(t reflect.Type, always bool) ordered {
	s := describe(t)
	var o ordered
	text := func(v any) json.RawMessage { return plainJSON(v) }
	switch {
	case strings.HasPrefix(s.of, "[]"):
		o.set("type", text("array"))
		o.set("items", schemaOf(t.Elem(), true))
	case s.of == "date-time":
		o.set("type", text("string"))
		o.set("format", text(s.of))
	case strings.ToLower(s.of) != s.of: // a type of the API
		ref := ordered{{"$ref", text("#/components/schemas/" + s.of)}}
		if !s.null || !always {
			return ref
		}
		return ordered{{"oneOf", text([]any{ref, ordered{{"type", text("null")}}})}}
	default:
		o.set("type", text(s.of))
	}
	if s.null && always {
		o.set("type", text([]any{o.get("type"), "null"}))
	}
	return o
}

// fieldComments returns the comments of the fields of package api, by Type.Field.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := os.ReadDir("../../../api")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), "../../../api/"+f.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						about := strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
						out[spec.Name.Name+"."+name.Name] = about
					}
				}
			}
			return true
		})
	}
	return out
}

// A new field gets its schema and its comment, and one that is gone goes.
func TestDocumentFollowsTypes(t *testing.T) {
	t.Parallel()
	type made struct {
		Kept  string          `json:"kept"`
		Size  *int64          `json:"size"`
		Part  *api.Size       `json:"part"`
		Parts []api.Condition `json:"parts,omitempty"`
	}
	var s ordered
	if err := json.Unmarshal([]byte(`{"type":"object","required":["gone","kept"],"properties":{"gone":{"type":"string"},"kept":{"type":"string","description":"By people."}}}`), &s); err != nil {
		t.Fatal(err)
	}
	got := string(plainJSON(withFields(s, reflect.TypeFor[made](), map[string]string{"made.Size": "in bytes"})))
	want := `{"type":"object","required":["kept","size","part"],"properties":{"kept":{"type":"string","description":"By people."},"size":{"type":["integer","null"],"description":"in bytes"},"part":{"oneOf":[{"$ref":"#/components/schemas/Size"},{"type":"null"}]},"parts":{"type":"array","items":{"$ref":"#/components/schemas/Condition"}}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
