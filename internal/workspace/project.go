package workspace

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a Repository.
const (
	maxRepositoryURL = 2000 // bytes
	maxBranch        = 250  // bytes
	maxProjectPath   = 250  // bytes
	MaxDepth         = 1_000_000
)

// ProjectDir is the folder of the home that the IDE opens, and in which repositories are cloned.
const ProjectDir = "project"

// CloneSuffix is that of the hidden folder next to its destination into which a repository is
// cloned. No repository's folder has it.
const CloneSuffix = ".codehub-clone"

// Limits of a Project.
const (
	MaxRepositories = 16
	maxProjectBytes = 64 << 10
)

// Project is what a workspace was created to work on. Only an update of its template and the use of a
// Devcontainer change it.
type Project struct {
	Repositories []Repository `json:"repositories,omitempty"`
	Scripts      *Scripts     `json:"scripts,omitempty"` // nil: none
	// Extensions are those of the IDE, such as golang.go.
	Extensions []string      `json:"extensions,omitempty"`
	Ports      []ProjectPort `json:"ports,omitempty"` // each number once
	// Secrets are the variables that secrets of its owner should set. The workspace starts without
	// them as well.
	Secrets []string `json:"secrets,omitempty"`
	// Devcontainer is the description of a repository that the workspace uses; nil: none.
	Devcontainer *Devcontainer `json:"devcontainer,omitempty"`
}

// MaxRequiredSecrets bounds Project.Secrets.
const MaxRequiredSecrets = 50

// ProjectPort is a port on which the workspace is expected to listen.
type ProjectPort struct {
	Port  int    `json:"port"`
	Label string `json:"label,omitempty"`
	Open  bool   `json:"open,omitempty"` // the workspace's page has a button for it
}

// Limits of the ports of a Project.
const (
	MaxProjectPorts = 32
	MaxPortLabel    = 60 // characters
)

// CheckPort returns CodeInvalid for a port that can be neither opened nor shared.
func CheckPort(port int) error {
	switch {
	case port < 1 || port > 65535:
		return InvalidField("port", "must be between 1 and 65535.")
	case ReservedPort(port):
		return InvalidField("port", fmt.Sprintf("cannot be %d, which is codehub's own.", port))
	}
	return nil
}

// MaxExtensions bounds Project.Extensions.
const MaxExtensions = 50

var extension = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(@[A-Za-z0-9][A-Za-z0-9.+-]{0,49})?$`)

// ValidExtension reports whether a text names an extension of the IDE: publisher.name, and
// @version if it is a certain one.
func ValidExtension(name string) bool { return extension.MatchString(name) }

// Scripts are texts for a shell that the setup of a workspace runs.
type Scripts struct {
	Create string `json:"create,omitempty"` // once per home
	Start  string `json:"start,omitempty"`  // at each start
	// Timeout is after how many seconds each is ended; 0: the agent's default.
	Timeout int `json:"timeout,omitempty"`
}

// Limits of Scripts.
const (
	MaxScript        = 32 << 10 // bytes of one
	MaxScriptTimeout = 3600     // seconds
)

// Empty reports whether there is nothing in it.
func (p *Project) Empty() bool {
	return p == nil || len(p.Repositories) == 0 && p.Scripts == nil && len(p.Extensions) == 0 && len(p.Ports) == 0 && len(p.Secrets) == 0
}

// Check returns CodeInvalid for a project that no workspace can have.
func (p *Project) Check() error {
	if p.Empty() {
		return nil
	}
	if len(p.Repositories) > MaxRepositories {
		return InvalidField("repositories", fmt.Sprintf("are more than %d.", MaxRepositories))
	}
	var folders []string
	for _, r := range p.Repositories {
		if err := r.Check(); err != nil {
			return err
		}
		// A folder in another one could be behind a link that the other repository brings.
		folder := strings.ToLower(r.Folder()) + "/"
		for _, other := range folders {
			if strings.HasPrefix(folder, other) || strings.HasPrefix(other, folder) {
				return InvalidField("path", "is the folder of another repository, or in one.")
			}
		}
		folders = append(folders, folder)
	}
	if s := p.Scripts; s != nil {
		switch {
		case s.Create == "" && s.Start == "":
			return InvalidField("scripts", "have no command.")
		case len(s.Create) > MaxScript || len(s.Start) > MaxScript || strings.Contains(s.Create+s.Start, "\x00"):
			return InvalidField("scripts", fmt.Sprintf("are texts of at most %d bytes.", MaxScript))
		case s.Timeout < 0 || s.Timeout > MaxScriptTimeout:
			return InvalidField("scripts", fmt.Sprintf("have a time limit of at most %d seconds.", MaxScriptTimeout))
		}
	}
	if len(p.Extensions) > MaxExtensions || slices.ContainsFunc(p.Extensions, func(e string) bool { return !ValidExtension(e) }) {
		return InvalidField("extensions", fmt.Sprintf("are at most %d names like golang.go.", MaxExtensions))
	}
	if len(p.Ports) > MaxProjectPorts {
		return InvalidField("ports", fmt.Sprintf("are more than %d.", MaxProjectPorts))
	}
	for i, port := range p.Ports {
		if err := CheckPort(port.Port); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Ports[:i], func(o ProjectPort) bool { return o.Port == port.Port }) {
			return InvalidField("port", "is given twice.")
		}
		if utf8.RuneCountInString(port.Label) > MaxPortLabel || strings.ContainsFunc(port.Label, Unprintable) {
			return InvalidField("label", fmt.Sprintf("is a line of at most %d characters.", MaxPortLabel))
		}
	}
	if len(p.Secrets) > MaxRequiredSecrets {
		return InvalidField("secrets", fmt.Sprintf("are more than %d.", MaxRequiredSecrets))
	}
	if b, err := json.Marshal(p); err != nil || len(b) > maxProjectBytes {
		if p.Devcontainer != nil {
			return InvalidField("file", fmt.Sprintf("has more than %d bytes for the workspace to use.", maxProjectBytes))
		}
		return InvalidField("repositories", fmt.Sprintf("have more than %d bytes.", maxProjectBytes))
	}
	return p.Devcontainer.Check()
}

// Over returns the parts of p, and of the parts that it lacks those of base. The repositories are
// one part: those of p replace all of base.
func (p *Project) Over(base *Project) *Project {
	var out Project
	if base != nil {
		out = *base
	}
	if p != nil && len(p.Repositories) > 0 {
		out.Repositories, out.Devcontainer = p.Repositories, nil
	}
	if p != nil && p.Scripts != nil {
		out.Scripts = p.Scripts
	}
	if p != nil && len(p.Extensions) > 0 {
		out.Extensions = p.Extensions
	}
	if p != nil && len(p.Ports) > 0 {
		out.Ports = p.Ports
	}
	if p != nil && len(p.Secrets) > 0 {
		out.Secrets = p.Secrets
	}
	if out.Empty() {
		return nil
	}
	return &out
}

// Follow returns the project of a workspace after its template, which gave from, gives to. A part
// that differs from what the template gave stays.
func (p *Project) Follow(from, to *Project) *Project {
	var is, was, next Project
	for _, set := range []struct{ at, value *Project }{{&is, p}, {&was, from}, {&next, to}} {
		if set.value != nil {
			*set.at = *set.value
		}
	}
	follow(&is.Repositories, was.Repositories, next.Repositories)
	if reflect.DeepEqual(is.Scripts, was.Scripts) {
		is.Scripts = next.Scripts
	}
	follow(&is.Extensions, was.Extensions, next.Extensions)
	follow(&is.Ports, was.Ports, next.Ports)
	follow(&is.Secrets, was.Secrets, next.Secrets)
	if d := is.Devcontainer; d != nil && !slices.ContainsFunc(is.Repositories, func(r Repository) bool { return strings.HasPrefix(d.File, r.Folder()+"/") }) {
		is.Devcontainer = nil
	}
	if is.Empty() {
		return nil
	}
	return &is
}

func follow[T any](is *[]T, was, next []T) {
	if len(*is) == len(was) && (len(was) == 0 || reflect.DeepEqual(*is, was)) {
		*is = next
	}
}

// Folder is the folder below the home that the IDE opens.
func (p *Project) Folder() string {
	if !p.Empty() && p.Devcontainer != nil {
		return p.Devcontainer.Folder
	}
	if !p.Empty() && len(p.Repositories) == 1 {
		return p.Repositories[0].Folder()
	}
	return ProjectDir
}

// Repository is a Git repository that is cloned into a workspace.
type Repository struct {
	// URL begins with https://, http:// or ssh://, or has the form user@host:path.
	URL string `json:"url"`
	// Branch is a branch or a tag; empty: the one that the repository begins with.
	Branch string `json:"branch,omitempty"`
	// Path is the folder below the home; empty: that of Folder.
	Path string `json:"path,omitempty"`
	// Depth is how many commits of the history are fetched; 0: all.
	Depth      int  `json:"depth,omitempty"`
	Submodules bool `json:"submodules,omitempty"`
}

// Folder is the folder below the home that the repository is cloned into.
func (r Repository) Folder() string {
	if r.Path != "" {
		return r.Path
	}
	return path.Join(ProjectDir, r.Name())
}

// Name is the name of the repository: the last part of its URL, in which other than letters,
// digits, ".", "_" and "-" is replaced.
func (r Repository) Name() string {
	address := strings.TrimRight(r.URL, "/")
	name := strings.TrimSuffix(address[strings.LastIndexAny(address, "/:")+1:], ".git")
	if unescaped, err := url.PathUnescape(name); err == nil {
		name = unescaped
	}
	name = strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("._-", c) {
			return c
		}
		return '-'
	}, strings.ToValidUTF8(name, ""))
	name = strings.Trim(name, "-")
	if name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git") || len(name) > 100 {
		return "repository"
	}
	return name
}

// Spellings are the addresses that differ from the repository's in the end alone, as people paste
// them.
func (r Repository) Spellings() []string {
	base := strings.TrimSuffix(strings.TrimRight(r.URL, "/"), ".git")
	return []string{base, base + ".git", base + "/", base + ".git/"}
}

// Check returns CodeInvalid for a repository that cannot be cloned, or whose values a program
// might take for options.
func (r Repository) Check() error {
	if err := checkRepositoryURL(r.URL); err != nil {
		return err
	}
	if r.Branch != "" && !isBranch(r.Branch) {
		return InvalidField("branch", "is not the name of a branch or a tag.")
	}
	if !isProjectPath(r.Folder()) {
		return InvalidField("path", "is not a folder below the home whose name does not begin with a dot, such as project/api.")
	}
	if r.Depth < 0 || r.Depth > MaxDepth {
		return InvalidField("depth", fmt.Sprintf("is a number from 0 to %d.", MaxDepth))
	}
	return nil
}

// The user, the host and the path of git@host:path. None begins with a dash.
var scpAddress = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-:\s][^:\s]*$`)

var repositoryHost = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?$`)

// tokenPrefixes begin tokens that some write in the place of a user's name.
var tokenPrefixes = []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "ATATT", "ATBB"}

func checkRepositoryURL(address string) error {
	const form = "begins with https://, http:// or ssh://, or has the form git@host:path."
	switch {
	case address == "":
		return InvalidField("repo", "is required.")
	case len(address) > maxRepositoryURL:
		return InvalidField("repo", fmt.Sprintf("has more than %d bytes.", maxRepositoryURL))
	case strings.ContainsFunc(address, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }), strings.ContainsAny(address, `\"'`+"`"):
		return InvalidField("repo", "has spaces, quotes or control characters.")
	case scpAddress.MatchString(address):
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" || !strings.HasPrefix(address, u.Scheme+"://") {
		return InvalidField("repo", form)
	}
	if u.User != nil {
		_, password := u.User.Password()
		user := u.User.Username()
		for _, prefix := range tokenPrefixes {
			password = password || strings.HasPrefix(user, prefix)
		}
		if password || u.Scheme != "ssh" && len(user) > 39 {
			e := InvalidField("repo", "has a password or a token in it, which others could see. Remove it.")
			e.Details["reason"] = "password"
			return e
		}
		if user == "" || strings.HasPrefix(user, "-") {
			return InvalidField("repo", form)
		}
	}
	if u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || !repositoryHost.MatchString(u.Host) || strings.Trim(u.Path, "/") == "" {
		return InvalidField("repo", "is not the address of a repository, such as https://git.example.com/team/api.git.")
	}
	return nil
}

// isBranch reports whether git accepts the name of a branch (git-check-ref-format).
func isBranch(name string) bool {
	if len(name) > maxBranch || name == "@" || strings.HasPrefix(name, "-") || strings.Contains(name, "..") || strings.Contains(name, "@{") ||
		strings.HasSuffix(name, ".") || strings.ContainsFunc(name, func(c rune) bool {
		return c <= ' ' || c == 0x7f || unicode.IsSpace(c) || c == unicode.ReplacementChar || strings.ContainsRune(`~^:?*[\`, c)
	}) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// isProjectPath reports whether a folder below the home may have a repository. The hidden ones of
// the home have the configuration of programs.
func isProjectPath(name string) bool {
	if len(name) > maxProjectPath || path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, ".") ||
		strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) || strings.ContainsRune(`\:*?"<>|`, c) }) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || strings.EqualFold(part, ".git") || strings.HasPrefix(part, "-") || strings.HasSuffix(part, CloneSuffix) {
			return false
		}
	}
	return true
}
