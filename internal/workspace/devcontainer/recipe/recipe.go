package recipe

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/workspace/devcontainer"
)

const (
	// AuthoritiesFile is the file of a build context with the authorities that programs trust, in
	// PEM.
	AuthoritiesFile = ".codehub-authorities.crt"
	// authoritiesPath is where images that are built have it: workspaces mount their own there.
	authoritiesPath = "/opt/codehub-trust/build.crt"
)

// Trust returns the lines of a Dockerfile after each FROM by which the programs of a build trust
// AuthoritiesFile; none without authorities. An ARG is a variable of the build only.
func Trust(authorities []byte) string {
	if len(authorities) == 0 {
		return ""
	}
	lines := "COPY " + AuthoritiesFile + " " + authoritiesPath + "\nARG"
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT"} {
		lines += " " + name + "=" + authoritiesPath
	}
	return lines + "\n"
}

// Install is a Feature to install.
type Install struct {
	Name   string            // for the log
	Dir    string            // folder of the build context, without blanks
	Digest string            // of its content
	Env    map[string]string // of install.sh; see feature.Env
	// ContainerEnv are variables of the image, in their order.
	ContainerEnv []devcontainer.Variable
}

// user creates the workspace's user in an image that has none. The files are edited, since not every
// image has useradd, and useradd refuses a uid that is taken.
const user = `# Add the user coder
set -e
has() {
  while IFS=: read -r name rest || [ -n "$name" ]; do
    if [ "$name" = coder ]; then return 0; fi
  done < "$1"
  return 1
}
add() {
  { echo "$1"; cat "$2"; } > /etc/codehub-list
  cat /etc/codehub-list > "$2"
  rm /etc/codehub-list
}
touch /etc/group /etc/passwd
has /etc/group || add 'coder:x:1000:' /etc/group
if ! has /etc/passwd; then
  shell=/bin/sh
  if [ -x /bin/bash ]; then shell=/bin/bash; fi
  add "coder:*:1000:1000:coder:/home/coder:$shell" /etc/passwd
  mkdir -p /home/coder
  chown coder:coder /home/coder
fi`

// Features returns the Dockerfile that installs Features in an image, in their order. It trusts the
// authorities.
func Features(base string, installs []Install, authorities []byte) string {
	var b strings.Builder
	b.WriteString("FROM " + base + "\n" + Trust(authorities) + "USER root\n" + run(user))
	for n, i := range installs {
		for _, v := range i.ContainerEnv {
			fmt.Fprintf(&b, "ENV %s=\"%s\"\n", v.Name, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v.Value))
		}
		dir := fmt.Sprintf("/tmp/codehub-features/%d", n)
		fmt.Fprintf(&b, "COPY %s %s\n", i.Dir, dir)
		script := "# Install " + strconv.Quote(i.Name) + "\nset -e\n" // the log has the beginning
		env := map[string]string{
			"HOME": "/root", "USER": "root", // an image may set those of another user
			"_REMOTE_USER": "coder", "_REMOTE_USER_HOME": "/home/coder", "_CONTAINER_USER": "coder", "_CONTAINER_USER_HOME": "/home/coder",
		}
		maps.Copy(env, i.Env)
		for _, name := range slices.Sorted(maps.Keys(env)) {
			script += "export " + name + "=" + devcontainer.ShellWord(env[name]) + "\n"
		}
		b.WriteString(run(script + "cd " + dir + "\nchmod -R 0755 .\n./install.sh\ncd /\nrm -rf " + dir))
	}
	b.WriteString("USER 1000:1000\n")
	return b.String()
}

// run returns the RUN of a script for sh. As a list in JSON, it may have any character, and the
// image's SHELL does not matter.
func run(script string) string {
	list, _ := json.Marshal([]string{"/bin/sh", "-c", script})
	return "RUN " + string(list) + "\n"
}

// Inputs determine an image.
type Inputs struct {
	Images      map[string]string // IDs of the images by their names: those of the Dockerfile, or the base
	Context     string            // digest of the build context; empty: there is no Dockerfile
	Dockerfile  string
	Target      string
	Args        map[string]string
	Base        string // the image, if there is no Dockerfile
	Installs    []Install
	Authorities []byte // content of AuthoritiesFile
}

// Digest returns 32 hexadecimal digits that differ for other inputs.
func (i Inputs) Digest() string {
	// The Dockerfile of the Features is an input too: another version of codehub may write another.
	text, _ := json.Marshal(struct {
		Inputs
		Features string
	}{i, Features(i.Base, i.Installs, i.Authorities)})
	return fmt.Sprintf("%x", sha256.Sum256(text))[:32]
}
