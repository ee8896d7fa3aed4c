package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// clientFile is the client of one system, as a release packs it (scripts/release.sh).
type clientFile struct {
	Name   string // codehub-cli_0.1.0_linux_amd64.tar.gz
	OS     string // linux, darwin or windows
	Arch   string // amd64 or arm64
	SHA256 string
	// Line gets it: for a shell, or for PowerShell on Windows.
	Line string
}

var clientName = regexp.MustCompile(`^(codehub-cli_[^_]+_(linux|darwin|windows)_(amd64|arm64))\.(tar\.gz|zip)$`)

// readClients reads the clients in a folder. Without one there are none.
func readClients(dir, url string) ([]clientFile, error) {
	entries, err := os.ReadDir(dir)
	if dir == "" || os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []clientFile
	for _, e := range entries {
		m := clientName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		sum, err := digestOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		f := clientFile{Name: e.Name(), OS: m[2], Arch: m[3], SHA256: sum}
		if f.Line = "curl -fsSL " + url + "/bin/" + f.Name + " | sudo tar -xzf - -C /usr/local/bin --strip-components=1 " + m[1] + "/codehub"; f.OS == "windows" {
			f.Line = "Invoke-WebRequest " + url + "/bin/" + f.Name + " -OutFile codehub.zip; Expand-Archive codehub.zip -DestinationPath $HOME -Force; $env:PATH += \";$HOME\\" + m[1] + "\""
		}
		out = append(out, f)
	}
	return out, nil
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// clientFiles returns the clients that the server has, read once.
func (d *Dashboard) clientFiles() []clientFile {
	d.readClients.Do(func() {
		list, err := readClients(d.Clients, strings.TrimSuffix(d.URL.String(), "/"))
		if err != nil {
			d.Log.Error("the clients cannot be read", "folder", d.Clients, "err", err)
		}
		d.clients = list
	})
	return d.clients
}

// clientsOnce holds what clientFiles has read.
type clientsOnce struct {
	readClients sync.Once
	clients     []clientFile
}

// bin serves the clients and their checksums, as sha256sum writes them. They need no session: a
// computer that has no client yet has no login either.
func (d *Dashboard) bin(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	list := d.clientFiles()
	if name == "checksums.txt" && len(list) > 0 {
		accesslog.Quiet(r.Context())
		d.secureHeaders(w.Header())
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, f := range list {
			_, _ = io.WriteString(w, f.SHA256+"  "+f.Name+"\n")
		}
		return
	}
	if !slices.ContainsFunc(list, func(f clientFile) bool { return f.Name == name }) {
		d.noPage(w, r)
		return
	}
	d.secureHeaders(w.Header())
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	http.ServeFile(w, r, filepath.Join(d.Clients, name))
}

// computerView is the page that connects a computer.
type computerView struct {
	Own    *clientFile  // for the visitor's system; nil: unknown, or the server has none
	Others []clientFile // for all other systems
	Login  string
	Config string
	SSH    string // a command of OpenSSH by the server's port; empty: there is no port
	System string // the visitor's: linux, darwin, windows, or empty
}

// systemOf guesses the system of a browser. Browsers do not say the processor of a Mac, and those
// that are sold have had arm64 since 2020.
func systemOf(userAgent string) (system, arch string) {
	switch {
	case strings.Contains(userAgent, "Android"), strings.Contains(userAgent, "iPhone"), strings.Contains(userAgent, "iPad"):
		return "", ""
	case strings.Contains(userAgent, "Windows"):
		system = "windows"
	case strings.Contains(userAgent, "Mac OS X"):
		return "darwin", "arm64"
	case strings.Contains(userAgent, "Linux"):
		system = "linux"
	default:
		return "", ""
	}
	if arch = "amd64"; strings.Contains(userAgent, "aarch64") || strings.Contains(userAgent, "ARM64") {
		arch = "arm64"
	}
	return system, arch
}

func (d *Dashboard) computer(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v := computerView{Login: "codehub login " + strings.TrimSuffix(d.URL.String(), "/"), Config: "codehub config-ssh"}
	if d.SSH.Host != "" {
		v.SSH = d.SSH.Command(workspace.Workspace{Name: "NAME"})
	}
	system, arch := systemOf(r.UserAgent())
	v.System = system
	for _, f := range d.clientFiles() {
		if f.OS == system && f.Arch == arch {
			v.Own = &f
			continue
		}
		v.Others = append(v.Others, f)
	}
	p := d.newPage(r, &c, "computer.title", v)
	p.Nav = "computer"
	d.render(w, r, http.StatusOK, "computer", p)
}
