package workspace

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Devcontainer is the description in a repository (package devcontainer) that its workspace uses: a
// snapshot that does not change when the file does.
type Devcontainer struct {
	// File is the path of the file below the home, and Digest that of its content.
	File   string `json:"file"`
	Digest string `json:"digest"`
	// Folder is the folder below the home that the IDE opens and scripts begin in.
	Folder string `json:"folder"`
	// References are variables whose values name others of the container (agent.Setup.References).
	References map[string]string    `json:"references,omitempty"`
	Settings   json.RawMessage      `json:"settings,omitempty"` // of the editor: a JSON object
	Scripts    []DevcontainerScript `json:"scripts,omitempty"`  // in their order
	Extensions []string             `json:"extensions,omitempty"`
	Ports      []ProjectPort        `json:"ports,omitempty"`
	Secrets    []string             `json:"secrets,omitempty"` // names that the repository asks for

	// Given is what it gave to the workspace, and Before what that had instead. A setting of the
	// workspace that differs from Given was changed by its owner.
	Given  DevcontainerSettings `json:"given"`
	Before DevcontainerSettings `json:"before"`
}

// DevcontainerSettings are the settings of a workspace that a description changes.
type DevcontainerSettings struct {
	Image string            `json:"image"`
	Size  string            `json:"size,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
}

// DevcontainerScript is commands that run side by side, once per home or at each start.
type DevcontainerScript struct {
	Name     string                `json:"name"` // "postCreateCommand"
	Once     bool                  `json:"once,omitempty"`
	Commands []DevcontainerCommand `json:"commands"`
}

// DevcontainerCommand is a text for a shell, or a program with its arguments.
type DevcontainerCommand struct {
	Name  string   `json:"name,omitempty"`
	Shell string   `json:"shell,omitempty"`
	Args  []string `json:"args,omitempty"`
}

// Limits of what Features add to a description's scripts. With the other steps of a setup, the
// scripts are at most agent.MaxSteps.
const (
	maxDevcontainerScripts  = 40
	maxDevcontainerCommands = 16 // of a script; they run side by side
)

// AllExtensions are the extensions of the project, and those of its Devcontainer.
func (p *Project) AllExtensions() []string {
	if p == nil {
		return nil
	}
	all := slices.Clone(p.Extensions)
	if p.Devcontainer != nil {
		for _, e := range p.Devcontainer.Extensions {
			if !slices.ContainsFunc(all, func(other string) bool { return strings.EqualFold(other, e) }) {
				all = append(all, e)
			}
		}
	}
	return all
}

// AllSecrets are the variables that secrets should set for the project, and for its Devcontainer.
func (p *Project) AllSecrets() []string {
	if p == nil {
		return nil
	}
	all := slices.Clone(p.Secrets)
	if p.Devcontainer != nil {
		for _, name := range p.Devcontainer.Secrets {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// AllPorts are the ports of the project, and those of its Devcontainer; each number once.
func (p *Project) AllPorts() []ProjectPort {
	if p == nil {
		return nil
	}
	all := slices.Clone(p.Ports)
	if p.Devcontainer != nil {
		for _, port := range p.Devcontainer.Ports {
			if !slices.ContainsFunc(all, func(other ProjectPort) bool { return other.Port == port.Port }) {
				all = append(all, port)
			}
		}
	}
	return all
}

// Check returns CodeInvalid for a description that a workspace cannot use.
func (d *Devcontainer) Check() error {
	if d == nil {
		return nil
	}
	if clean := path.Clean(d.Folder); clean != d.Folder || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") {
		return InvalidField("file", "opens a folder that is not below the home.")
	}
	if len(d.Extensions) > MaxExtensions || len(d.Ports) > MaxProjectPorts {
		return InvalidField("file", "has too many extensions or ports.")
	}
	if len(d.Scripts) > maxDevcontainerScripts {
		return InvalidField("file", fmt.Sprintf("has, with its Features, more than %d scripts.", maxDevcontainerScripts))
	}
	for _, s := range d.Scripts {
		if len(s.Commands) > maxDevcontainerCommands {
			return InvalidField("file", "has a script of more than 16 commands.")
		}
	}
	return nil
}
