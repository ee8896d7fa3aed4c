package template

import (
	"embed"
	"fmt"
	"path"
	"sync"
)

//go:embed builtin/*.yaml
var builtin embed.FS

// builtinNames are the names of the built-in templates, as they are offered.
var builtinNames = []string{"empty", "go", "python", "node", "java", "cpp", "data"}

// Builtin is a built-in template with its text.
type Builtin struct {
	Template
	Text string
}

// BuiltIn returns the built-in templates, which use the default image.
var BuiltIn = sync.OnceValue(func() []Builtin {
	list := make([]Builtin, len(builtinNames))
	for i, name := range builtinNames {
		text, err := builtin.ReadFile(path.Join("builtin", name+".yaml"))
		if err != nil {
			panic(err) // embedded
		}
		t, err := Parse(name, text)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", name, err)) // a test parses them
		}
		list[i] = Builtin{t, string(text)}
	}
	return list
})
