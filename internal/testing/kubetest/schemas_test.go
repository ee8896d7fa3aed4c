package kubetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// schema is a JSON schema.
type schema = map[string]any

const (
	definition = "#/definitions/"
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// writeSchemas writes a JSON schema, without references to other files, for every kind of an
// OpenAPI document of Kubernetes and of files with custom resource definitions. The schemas
// permit no field that the definitions do not have. The files have the names by which
// kubeconform.check has them found.
func writeSchemas(dir, openAPI string, customResources ...string) error {
	var document struct{ Definitions map[string]schema }
	if err := read(openAPI, &document); err != nil {
		return err
	}
	for name, d := range document.Definitions {
		switch name {
		case "io.k8s.apimachinery.pkg.api.resource.Quantity":
			d["type"] = []string{"string", "number"}
		case "io.k8s.apimachinery.pkg.util.intstr.IntOrString":
			d["type"] = []string{"string", "integer"}
		default:
			forbidUnknown(d)
		}
	}
	for name, d := range document.Definitions {
		// Options, which are no resources, are of many groups.
		if kinds, _ := d["x-kubernetes-group-version-kind"].([]any); len(kinds) == 1 {
			kind := kinds[0].(schema)
			s := schema{"$ref": definition + name}
			if err := writeSchema(dir, kind["group"].(string), kind["version"].(string), kind["kind"].(string), s, document.Definitions); err != nil {
				return err
			}
		}
	}
	for _, file := range customResources {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Served bool
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if err := read(file, &crd); err != nil {
			return err
		}
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			s := v.Schema.OpenAPIV3Schema
			forbidUnknown(s)
			s["properties"].(schema)["metadata"] = schema{"$ref": definition + objectMeta}
			if err := writeSchema(dir, crd.Spec.Group, v.Name, crd.Spec.Names.Kind, s, document.Definitions); err != nil {
				return err
			}
		}
	}
	return nil
}

// read reads a JSON or YAML file.
func read(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	parse := json.Unmarshal
	if filepath.Ext(file) == ".yaml" {
		parse = func(b []byte, v any) error { return yaml.Unmarshal(b, v) }
	}
	if err := parse(b, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// forbidUnknown changes a schema, and those in it, so that objects have no other properties
// than those it names. Objects of which it names none may have any.
func forbidUnknown(s schema) {
	delete(s, "description") // half of the bytes
	properties, _ := s["properties"].(schema)
	for _, p := range properties {
		forbidUnknown(p.(schema))
	}
	if _, maps := s["additionalProperties"]; len(properties) > 0 && !maps && s["x-kubernetes-preserve-unknown-fields"] != true {
		s["additionalProperties"] = false
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if values, ok := s[name].(schema); ok {
			forbidUnknown(values)
		}
	}
}

// writeSchema writes a schema with the definitions that it refers to.
func writeSchema(dir, group, version, kind string, s schema, definitions map[string]schema) error {
	used := map[string]schema{}
	addReferences(s, definitions, used)
	s["definitions"] = used
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if group == "" {
		group = version // kubeconform takes what is before the slash of apiVersion
	}
	return os.WriteFile(filepath.Join(dir, group+"_"+version+"_"+strings.ToLower(kind)+".json"), b, 0o644)
}

// addReferences adds to used the definitions that a value of a schema refers to, directly and
// by others.
func addReferences(v any, definitions, used map[string]schema) {
	switch v := v.(type) {
	case schema:
		if reference, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(reference, definition)
			if _, done := used[name]; !done {
				used[name] = definitions[name]
				addReferences(definitions[name], definitions, used)
			}
		}
		for _, inner := range v {
			addReferences(inner, definitions, used)
		}
	case []any:
		for _, inner := range v {
			addReferences(inner, definitions, used)
		}
	}
}
