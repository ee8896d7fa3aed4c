package gitapps

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"codehub/internal/base/setting"
	"codehub/internal/gateway/origin"
	"codehub/internal/users/gitaccess"
)

// Settings are the settings of connections to Git servers, as codehub serve declares them. Resolve
// reads the file.
type Settings struct {
	File string `name:"git-file" env:"CODEHUB_GIT_FILE" help:"File with the OAuth2 apps with which users connect GitHub, GitLab, Gitea, Forgejo and Bitbucket, in YAML (default: none)."`

	Apps []App `kong:"-"` // of File
}

const (
	fileSetting = "CODEHUB_GIT_FILE"
	maxApps     = 16
	maxHosts    = 16
	maxText     = 2048
)

var (
	validID   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	validHost = regexp.MustCompile(`^(http://)?([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)
)

// Resolve reads the file. It returns an invalid setting as *setting.Problem.
func (s *Settings) Resolve() error {
	if s.File == "" {
		return nil
	}
	text, err := setting.ReadFile(s.File)
	if err == nil {
		s.Apps, err = parse(text)
		if err != nil {
			err = fmt.Errorf("%s, %w", s.File, err)
		}
	}
	if err != nil {
		return setting.Invalid(fileSetting, err.Error(), "see docs/git.md for the format")
	}
	return nil
}

// Clients names the apps, for the comparison between servers.
func (s Settings) Clients() string {
	var parts []string
	for _, a := range s.Apps {
		parts = append(parts, a.ID+" "+a.URL+" "+a.ClientID)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// parse reads the file's text. Errors name the line and the field, and no secret.
func parse(text []byte) ([]App, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("line 1: the file is empty")
	} else if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	root, err := fieldsOf("", doc.Content[0], "apps")
	if err != nil {
		return nil, err
	}
	list, ok := root.nodes["apps"]
	if !ok || list.Kind != yaml.SequenceNode {
		return nil, root.fail("apps", "has to be a list")
	}
	if n := len(list.Content); n == 0 || n > maxApps {
		return nil, root.fail("apps", "has %d apps, not 1 to %d", n, maxApps)
	}
	apps := make([]App, len(list.Content))
	for i, n := range list.Content {
		path := "apps[" + strconv.Itoa(i) + "]"
		f, err := fieldsOf(path, n, "id", "title", "type", "url", "hosts", "client_id", "client_secret", "client_secret_file", "scopes", "authorize_url", "token_url")
		if err != nil {
			return nil, err
		}
		if apps[i], err = f.app(); err != nil {
			return nil, err
		}
		for j, other := range apps[:i] {
			if other.ID == apps[i].ID {
				return nil, f.fail("id", "is %q, like that of apps[%d]", other.ID, j)
			}
			for _, h := range apps[i].Hosts {
				if slices.Contains(other.Hosts, h) {
					return nil, f.fail("hosts", "has %s, like apps[%d]", h, j)
				}
			}
		}
	}
	return apps, nil
}

// fields are those of a mapping in the file.
type fields struct {
	path  string
	node  *yaml.Node
	nodes map[string]*yaml.Node
}

func fieldsOf(path string, n *yaml.Node, known ...string) (fields, error) {
	f := fields{path, n, map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		return f, f.fail("", "has to have fields, such as: %s", strings.Join(known, ", "))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		_, twice := f.nodes[name]
		f.nodes[name] = value
		switch {
		case !slices.Contains(known, name):
			f.nodes[name] = key
			return f, f.fail(name, "is unknown; the fields are: %s", strings.Join(known, ", "))
		case twice:
			return f, f.fail(name, "is given twice")
		}
		if value.Kind == yaml.ScalarNode && value.Tag == "!!null" {
			delete(f.nodes, name)
		}
	}
	return f, nil
}

// fail is an error about a field, at its line or, if it is missing, that of its mapping.
func (f fields) fail(name, format string, args ...any) error {
	n, path := f.nodes[name], f.path
	if n == nil {
		n = f.node
	}
	if name != "" && path != "" {
		path += "."
	}
	if path += name; path == "" {
		path = "the file"
	}
	return fmt.Errorf("line %d: %s %s", max(n.Line, 1), path, fmt.Sprintf(format, args...))
}

// text returns a field of visible text; empty if it is missing.
func (f fields) text(name string) (string, error) {
	n := f.nodes[name]
	if n == nil {
		return "", nil
	}
	if n.Kind != yaml.ScalarNode {
		return "", f.fail(name, "has to be one text")
	}
	if len(n.Value) > maxText || !utf8.ValidString(n.Value) || strings.ContainsFunc(n.Value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", f.fail(name, "has to be at most %d visible characters", maxText)
	}
	return n.Value, nil
}

func (f fields) list(name string) (out []string, err error) {
	n := f.nodes[name]
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxHosts {
		return nil, f.fail(name, "has to be a list of at most %d texts", maxHosts)
	}
	for _, one := range n.Content {
		item := fields{f.path, f.node, map[string]*yaml.Node{name: one}}
		text, err := item.text(name)
		if err == nil && text == "" {
			err = item.fail(name, "has an empty text")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// address returns a field with the address of a server; empty if it is missing.
func (f fields) address(name string) (string, error) {
	text, err := f.text(name)
	if err != nil || text == "" {
		return "", err
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Fragment != "" || u.User != nil || u.RawQuery != "":
		return "", f.fail(name, "is %q, and not an address such as https://git.example.com", text)
	case u.Scheme != "https" && (u.Scheme != "http" || !origin.Loopback(u.Hostname())):
		return "", f.fail(name, "is %q, and does not begin with https://", text)
	}
	u.Host = strings.ToLower(u.Host)
	return strings.TrimRight(u.String(), "/"), nil
}

// app reads an app.
func (f fields) app() (a App, err error) {
	texts := []struct {
		name     string
		into     *string
		required bool
	}{{"id", &a.ID, true}, {"type", &a.Type, true}, {"title", &a.Title, false}, {"client_id", &a.ClientID, true}, {"client_secret", &a.secret, false}}
	for _, t := range texts {
		if *t.into, err = f.text(t.name); err == nil && *t.into == "" && t.required {
			err = f.fail(t.name, "is missing")
		}
		if err != nil {
			return a, err
		}
	}
	k, ok := kinds[a.Type]
	switch {
	case !validID.MatchString(a.ID):
		return a, f.fail("id", "has to be 1 to 32 lower-case letters, digits and hyphens")
	case !ok:
		return a, f.fail("type", "is %q, and not one of: %s", a.Type, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case utf8.RuneCountInString(a.Title) > 64:
		return a, f.fail("title", "has more than 64 characters")
	}
	if a.Title == "" {
		a.Title = k.title
	}
	for name, into := range map[string]*string{"url": &a.URL, "authorize_url": &a.authorize, "token_url": &a.token} {
		if *into, err = f.address(name); err != nil {
			return a, err
		}
	}
	if a.URL == "" {
		if a.URL = k.url; a.URL == "" {
			return a, f.fail("url", "is missing")
		}
	}
	if a.Scopes, err = f.list("scopes"); err != nil {
		return a, err
	}
	a.fill(k)
	if err := f.hosts(&a); err != nil {
		return a, err
	}
	return a, f.secret(&a)
}

func (f fields) hosts(a *App) (err error) {
	hosts, err := f.list("hosts")
	if err != nil {
		return err
	}
	for i, h := range hosts {
		valid := validHost.MatchString(strings.ToLower(h))
		if h, err = gitaccess.ParseHost(h); err != nil || !valid {
			item := fields{f.path, f.nodes["hosts"].Content[i], nil}
			return item.fail("hosts", "has %q, and not a host such as git.example.com", hosts[i])
		}
		a.Hosts = append(a.Hosts, h)
	}
	if len(a.Hosts) == 0 {
		for _, h := range defaultHosts(a.URL) {
			if h, err = gitaccess.ParseHost(h); err != nil {
				return f.fail("url", "has no host that Git can use")
			}
			a.Hosts = append(a.Hosts, h)
		}
	}
	return nil
}

// secret reads the client's secret: the text itself, or the first line of a file.
func (f fields) secret(a *App) error {
	file, err := f.text("client_secret_file")
	switch {
	case err != nil:
		return err
	case (file == "") == (a.secret == ""):
		return f.fail("client_secret_file", "or client_secret is needed, and not both")
	case file == "":
		return nil
	}
	b, err := setting.ReadFile(file)
	if err != nil {
		return f.fail("client_secret_file", "cannot be read: %v", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if a.secret = strings.TrimSpace(first); a.secret == "" {
		return f.fail("client_secret_file", "is an empty file")
	}
	return nil
}
