// Package devcontainer reads the files by which repositories describe their environment:
// devcontainer.json (https://containers.dev) and, as hints, .gitpod.yml. What codehub does not
// honour is listed with a reason, never dropped silently. docs/devcontainer.md describes for users
// what is honoured.
package devcontainer

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Limits of a file.
const (
	MaxBytes  = 1 << 20
	maxDepth  = 32
	maxValues = 20_000
	maxListed = 200 // entries of Ignored
)

// GitpodFile is the name of the file that is read where a repository has no devcontainer.json.
const GitpodFile = ".gitpod.yml"

// Environment is what a file describes.
type Environment struct {
	Name  string
	Image string
	// Env are the variables of the container, and RemoteEnv those of the programs that people start.
	// ${containerEnv:NAME} is still in their values: the agent knows them.
	Env, RemoteEnv map[string]string
	User           string // empty: that of the image
	// Folder is the absolute path of the folder to open.
	Folder     string
	Ports      []Port
	Scripts    []Script // in the order in which they run
	Extensions []string
	Settings   map[string]any // of the editor
	Needs      Needs
	Secrets    []Secret // by name
	// Build, Features and FeatureOrder are read if Place.Builds; otherwise they are in Ignored.
	Build        *Build // nil: Image is used as it is
	Features     []Feature
	FeatureOrder []string // overrideFeatureInstallOrder; see Feature.Name
	Ignored      []Ignored

	lines map[string]int
}

// Line returns the line of a property, such as containerEnv.A; 0: it is not in the file.
func (e Environment) Line(property string) int { return e.lines[property] }

// Port is a port that a program of the repository listens on.
type Port struct {
	Port  int
	Label string
	Open  bool // in a browser, once a program listens on it
}

// Build is how the image is built. The paths are below the folder of the repository; "." is itself.
type Build struct {
	Dockerfile, Context string
	Target              string // stage; empty: the last one
	Args                map[string]string
}

// Feature is a Feature to install in the image.
type Feature struct {
	Reference string // of a registry, or a path below the repository's folder if Local
	Local     bool
	Options   map[string]string // "true" and "false" for yes and no
}

// Hook is when a script runs.
type Hook string

// The hooks, in their order.
const (
	OnCreate      Hook = "onCreateCommand"
	UpdateContent Hook = "updateContentCommand"
	PostCreate    Hook = "postCreateCommand"
	PostStart     Hook = "postStartCommand"
	PostAttach    Hook = "postAttachCommand"
)

var hooks = []Hook{OnCreate, UpdateContent, PostCreate, PostStart, PostAttach}

// Once reports whether the scripts of the hook run once for each home; the others run at each start.
func (h Hook) Once() bool { return h == OnCreate || h == UpdateContent || h == PostCreate }

// Compare orders hooks as they run.
func (h Hook) Compare(o Hook) int { return cmp.Compare(slices.Index(hooks, h), slices.Index(hooks, o)) }

// Script is what runs at a hook: one command, or several at the same time, which have names.
type Script struct {
	Hook     Hook
	Commands []Command
}

// Command is a text for a shell, or a program with its arguments.
type Command struct {
	Name  string
	Shell string
	Args  []string
}

// Needs are requirements of the machine; 0: none.
type Needs struct {
	CPUs            float64
	Memory, Storage int64 // bytes
}

// Secret is a secret that the repository asks its users for.
type Secret struct{ Name, Description, URL string }

// Ignored is something in a file that is not honoured.
type Ignored struct {
	Property string // as in the file: "portsAttributes.db:5432"
	Line     int
	Reason   Reason
}

// Reason is why something is not honoured. Pages have its text.
type Reason string

// The reasons.
const (
	ReasonUnknown         Reason = "unknown"
	ReasonType            Reason = "type" // it has another form
	ReasonBuild           Reason = "build"
	ReasonFeatures        Reason = "features"
	ReasonCompose         Reason = "compose"
	ReasonRunArgs         Reason = "run_args"
	ReasonMounts          Reason = "mounts"
	ReasonRights          Reason = "rights" // more rights than a workspace has
	ReasonHostCommand     Reason = "host_command"
	ReasonUser            Reason = "user"
	ReasonUserID          Reason = "user_id"
	ReasonFolder          Reason = "folder"
	ReasonWorkspaceMount  Reason = "workspace_mount"
	ReasonOverrideCommand Reason = "override_command"
	ReasonWaitFor         Reason = "wait_for"
	ReasonProbe           Reason = "probe"
	ReasonShutdown        Reason = "shutdown"
	ReasonGPU             Reason = "gpu"
	ReasonOtherTool       Reason = "other_tool"
	ReasonPortHost        Reason = "port_host"  // of another container
	ReasonPortRange       Reason = "port_range" // a range or a pattern
	ReasonPortAttribute   Reason = "port_attribute"
	ReasonUnset           Reason = "unset"     // null as the value of a variable
	ReasonLocalEnv        Reason = "local_env" // a variable of the user's computer
	ReasonVariable        Reason = "variable"  // ${…} that is unknown
	ReasonEnvName         Reason = "env_name"
	ReasonNoRemoval       Reason = "no_removal" // of an extension
	ReasonExtension       Reason = "extension"  // not an identifier
	ReasonPrebuild        Reason = "prebuild"
	ReasonBuildImage      Reason = "build_image"     // there is a Dockerfile
	ReasonBuildPath       Reason = "build_path"      // not in the repository
	ReasonBuildOptions    Reason = "build_options"   // of docker build
	ReasonBuildCache      Reason = "build_cache"     // images of a registry as cache
	ReasonFeatureName     Reason = "feature_name"    // not a reference of a registry
	ReasonFeatureArchive  Reason = "feature_archive" // by a URL
	ReasonMore            Reason = "more"            // the list of what is not honoured is longer
)

// Reasons are all reasons, for those who have texts for them.
var Reasons = []Reason{
	ReasonUnknown, ReasonType, ReasonBuild, ReasonFeatures, ReasonCompose, ReasonRunArgs, ReasonMounts, ReasonRights, ReasonHostCommand, ReasonUser, ReasonUserID,
	ReasonFolder, ReasonWorkspaceMount, ReasonOverrideCommand, ReasonWaitFor, ReasonProbe, ReasonShutdown, ReasonGPU, ReasonOtherTool, ReasonPortHost, ReasonPortRange,
	ReasonPortAttribute, ReasonUnset, ReasonLocalEnv, ReasonVariable, ReasonEnvName, ReasonNoRemoval, ReasonExtension, ReasonPrebuild, ReasonBuildImage, ReasonBuildPath, ReasonBuildOptions, ReasonBuildCache,
	ReasonFeatureName, ReasonFeatureArchive, ReasonMore,
}

// Reasons of an Error. Pages have their texts.
const (
	BadSyntax = "syntax"
	TooLong   = "long"
	TooDeep   = "deep"
	TooMany   = "many"
	NoObject  = "object"
	NoName    = "no_name" // ${localEnv} without the name of a variable
)

// Error is why a file cannot be used.
type Error struct {
	Reason string
	Line   int    // from 1
	Detail string // of BadSyntax: the words of the parser
}

// Error returns a clause without a full stop, such as "line 3: the file is nested too deeply".
func (e *Error) Error() string {
	text := "the file is not valid: " + e.Detail
	switch e.Reason {
	case TooLong:
		text = fmt.Sprintf("the file has more than %d bytes", MaxBytes)
	case TooDeep:
		text = fmt.Sprintf("the file is nested more than %d levels deep", maxDepth)
	case TooMany:
		text = fmt.Sprintf("the file has more than %d values", maxValues)
	case NoObject:
		text = "the file has no properties"
	case NoName:
		text = "${localEnv} or ${containerEnv} names no variable"
	}
	return fmt.Sprintf("line %d: %s", e.Line, text)
}

// Place is where the repository is.
type Place struct {
	Repository string // the absolute path of its folder
	ID         string // ${devcontainerId}: the same for all starts of a workspace
	User       string // whom programs run as
	Builds     bool   // this server builds images
}

// Parse reads a file. Its name decides the format. The error is an *Error.
func Parse(name string, content []byte, place Place) (Environment, error) {
	if len(content) > MaxBytes {
		return Environment{}, &Error{Reason: TooLong, Line: 1}
	}
	if path.Base(name) == GitpodFile {
		return parseGitpod(content, place)
	}
	return parse(path.Dir(name), content, place, place.opened)
}

// opened returns the folder below the repository that stands for a folder of the container, which
// has the repository at mounted or, if that is empty, below /workspaces. ok is false if it is in
// another place: then it is the repository.
func (p Place) opened(folder, mounted string) (opened string, ok bool) {
	if folder == "" {
		return p.Repository, true
	}
	folder = path.Clean(folder)
	if !path.IsAbs(folder) {
		folder = path.Join(p.Repository, folder)
	}
	if inside, ok := below(folder, p.Repository); ok {
		return path.Join(p.Repository, inside), true
	}
	if mounted == "" {
		rest, ok := strings.CutPrefix(folder, "/workspaces/")
		if !ok {
			return p.Repository, false
		}
		name, _, _ := strings.Cut(rest, "/")
		mounted = "/workspaces/" + name
	}
	if inside, ok := below(folder, path.Clean(mounted)); ok {
		return path.Join(p.Repository, inside), true
	}
	return p.Repository, false
}

func below(folder, of string) (string, bool) {
	if folder == of {
		return "", true
	}
	return strings.CutPrefix(folder, strings.TrimSuffix(of, "/")+"/")
}

// Choose returns the index of the file that a person named: its path, or the end of only one of the
// paths. An empty name is the first file, which is the one that the tools take. ok is false if there
// is none.
func Choose(files []string, name string) (index int, ok bool) {
	if name == "" {
		return 0, len(files) > 0
	}
	if i := slices.Index(files, name); i >= 0 {
		return i, true
	}
	found := -1
	for i, f := range files {
		if strings.HasSuffix(f, "/"+name) {
			if found >= 0 {
				return 0, false
			}
			found = i
		}
	}
	return found, found >= 0
}
