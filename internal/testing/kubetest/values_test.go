package kubetest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"codehub/internal/testing/harness"
)

var update = flag.Bool("update", false, "rewrite the definitions of the chart's values.schema.json")

// shapes are the types of Kubernetes that values of the chart have.
var shapes = []string{
	"core.v1.Affinity", "core.v1.EnvFromSource", "core.v1.EnvVar", "core.v1.LocalObjectReference", "core.v1.PodSecurityContext", "core.v1.ResourceRequirements",
	"core.v1.SecurityContext", "core.v1.Toleration", "core.v1.TopologySpreadConstraint", "networking.v1.NetworkPolicyEgressRule", "networking.v1.NetworkPolicyPeer",
}

// narrower is what the API server refuses beyond the types of its OpenAPI document, by
// definition and property.
var narrower = map[string]schema{
	"IPBlock.cidr":                               {"pattern": `^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+)/[0-9]{1,3}$`},
	"LabelSelectorRequirement.operator":          {"enum": []any{"In", "NotIn", "Exists", "DoesNotExist"}},
	"NetworkPolicyPort.protocol":                 {"enum": []any{"TCP", "UDP", "SCTP"}},
	"NodeSelectorRequirement.operator":           {"enum": []any{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}},
	"Toleration.effect":                          {"enum": []any{"NoSchedule", "PreferNoSchedule", "NoExecute"}},
	"Toleration.operator":                        {"enum": []any{"Exists", "Equal", "Lt", "Gt"}},
	"TopologySpreadConstraint.whenUnsatisfiable": {"enum": []any{"DoNotSchedule", "ScheduleAnyway"}},
}

// definitions returns the definitions of values.schema.json: Kubernetes' own shapes, the
// reference to a gateway, and the names of the settings.
func definitions(openAPI, httpRoute string) (map[string]schema, error) {
	var document struct{ Definitions map[string]schema }
	if err := read(openAPI, &document); err != nil {
		return nil, err
	}
	for _, d := range document.Definitions {
		forbidUnknown(d)
	}
	used := map[string]schema{}
	for _, name := range shapes {
		addReferences(schema{"$ref": definition + "io.k8s.api." + name}, document.Definitions, used)
	}
	all := map[string]schema{}
	for name, d := range used {
		all[last(name)] = short(d).(schema)
	}
	for place, more := range narrower {
		name, property, _ := strings.Cut(place, ".")
		maps.Copy(all[name]["properties"].(schema)[property].(schema), more)
	}
	all["IntOrString"] = schema{"type": []any{"string", "integer"}}
	all["LocalObjectReference"]["required"] = []any{"name"}
	all["NetworkPolicyPeer"]["minProperties"] = 1
	all["Quantity"] = schema{"type": []any{"string", "number"}, "minimum": 0, "pattern": `^[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][0-9]+)?$`}

	var route struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := read(httpRoute, &route); err != nil {
		return nil, err
	}
	spec := route.Spec.Versions[0].Schema.OpenAPIV3Schema["properties"].(schema)["spec"].(schema)
	parent := spec["properties"].(schema)["parentRefs"].(schema)["items"].(schema)
	forbidUnknown(parent)
	all["ParentReference"] = short(parent).(schema)

	b, err := os.ReadFile(filepath.Join(Chart(), "..", "..", "..", "docs", "settings.md"))
	if err != nil {
		return nil, err
	}
	var settings []any
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z][A-Z0-9_]+) \|`).FindAllStringSubmatch(string(b), -1) {
		settings = append(settings, "CODEHUB_"+strings.TrimPrefix(row[1], "CODEHUB_"))
	}
	all["Setting"] = schema{"enum": settings}
	return all, nil
}

func last(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// short returns a schema without what checks nothing, with the last parts of names.
func short(v any) any {
	switch v := v.(type) {
	case schema:
		out := schema{}
		for name, inner := range v {
			text, isText := inner.(string)
			switch {
			case strings.HasPrefix(name, "x-kubernetes-"), isText && (name == "description" || name == "format"), name == "default":
			case name == "$ref":
				out[name] = definition + last(text)
			default:
				out[name] = short(inner)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for n, inner := range v {
			out[n] = short(inner)
		}
		return out
	}
	return v
}

// The chart's values have Kubernetes' own shapes and the names of the settings, so that helm
// refuses others. With -update the test writes them.
func TestChartSchemaIsCurrent(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	files := conformanceFiles(t)
	want, err := definitions(files[1], files[2])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(Chart(), "values.schema.json")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	head, _, _ := strings.Cut(string(old), "  \"definitions\": {")
	text.WriteString(head + "  \"definitions\": {")
	for n, name := range slices.Sorted(maps.Keys(want)) {
		if n > 0 {
			text.WriteString(",")
		}
		fmt.Fprintf(&text, "\n    %q: ", name)
		line := json.NewEncoder(&text)
		line.SetEscapeHTML(false)
		if err := line.Encode(want[name]); err != nil {
			t.Fatal(err)
		}
		text.Truncate(text.Len() - 1)
	}
	text.WriteString("\n  }\n}\n")
	if *update {
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text.String() != string(old) {
		t.Error("the definitions in values.schema.json are not those of Kubernetes and docs/settings.md: go test -run TestChartSchemaIsCurrent ./internal/testing/kubetest -update")
	}
}
