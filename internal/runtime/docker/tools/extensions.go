package tools

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"codehub/internal/base/setting"
	"codehub/internal/runtime/docker/engine"
)

// The IDE's volume also holds the extensions of CODEHUB_EXTENSIONS_DIR, unpacked into the
// folder of the extensions that the IDE brings. So all workspaces have them, also those
// whose homes exist, and none is in a home.

const (
	// bundledDir is where the IDE's tree has the extensions that it brings.
	bundledDir = "code-server/lib/vscode/extensions"
	vsixSuffix = ".vsix"
	// vsixContent is the folder of a .vsix file that an IDE unpacks.
	vsixContent = "extension/"
)

// extensions is the content of the folder: its .vsix files, sorted by extension.
type extensions struct {
	files  []vsixFile
	digest string // of what the files contain; empty: there are none
}

type vsixFile struct {
	path   string
	sum    string // SHA-256, in hex
	size   int64
	folder string // of its extension: {publisher}.{name}-{version}, in lower case
	id     string // {publisher}.{name}
}

// on returns the digest of an IDE's tree with the extensions.
func (e extensions) on(ide string) string {
	if e.digest == "" {
		return ide
	}
	sum := sha256.Sum256([]byte(ide + "\n" + e.digest))
	return hex.EncodeToString(sum[:])
}

// pack writes the files, each with the name of its extension's folder. It fails if one has
// changed since it was read.
func (e extensions) pack(tw *tar.Writer) error {
	for _, v := range e.files {
		if err := v.pack(tw); err != nil {
			return fmt.Errorf("%s: %w", v.path, err)
		}
	}
	return nil
}

func (v vsixFile) pack(tw *tar.Writer) error {
	f, err := os.Open(v.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(&tar.Header{Name: v.folder + vsixSuffix, Mode: 0o444, Size: v.size}); err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(tw, sum), io.LimitReader(f, v.size))
	if err == nil && (n != v.size || hex.EncodeToString(sum.Sum(nil)) != v.sum) {
		err = engine.ErrConcurrent("the file has changed meanwhile")
	}
	return err
}

// CheckExtensions reads the folder of CODEHUB_EXTENSIONS_DIR, if one is set. It returns what is
// wrong with it or one of its files as *setting.Problem.
func CheckExtensions(dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := readExtensions(dir); err != nil {
		return setting.Invalid("CODEHUB_EXTENSIONS_DIR", err.Error(), "replace or remove the file, or give a folder with .vsix files")
	}
	return nil
}

// readExtensions reads all .vsix files of a folder to their end.
func readExtensions(dir string) (extensions, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return extensions{}, err
	}
	var e extensions
	for _, entry := range entries {
		if !isVSIX(entry.Name()) {
			continue
		}
		v, err := readVSIX(filepath.Join(dir, entry.Name()))
		if err != nil {
			return extensions{}, err
		}
		e.files = append(e.files, v)
	}
	slices.SortFunc(e.files, func(a, b vsixFile) int { return cmp.Compare(a.folder, b.folder) })
	sum := sha256.New()
	for i, v := range e.files {
		if i > 0 && e.files[i-1].id == v.id {
			return extensions{}, fmt.Errorf("%s and %s have the same extension %s: remove one of them", e.files[i-1].path, v.path, v.id)
		}
		fmt.Fprintln(sum, v.folder, v.sum)
	}
	if len(e.files) > 0 {
		e.digest = hex.EncodeToString(sum.Sum(nil))
	}
	return e, nil
}

func isVSIX(name string) bool {
	return strings.EqualFold(filepath.Ext(name), vsixSuffix) && !strings.HasPrefix(name, ".")
}

func readVSIX(file string) (vsixFile, error) {
	v, err := checkVSIX(file)
	if err != nil {
		err = fmt.Errorf("%s is not an extension that the IDE can use: %w", file, err)
	}
	return v, err
}

func checkVSIX(file string) (vsixFile, error) {
	info, err := os.Stat(file)
	if err != nil {
		return vsixFile{}, err
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return vsixFile{}, errors.New("it is not a file")
	}
	f, err := os.Open(file)
	if err != nil {
		return vsixFile{}, err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return vsixFile{}, err
	}
	archive, err := zip.NewReader(f, size)
	if err != nil {
		return vsixFile{}, err
	}
	if err := forPlatform(archive); err != nil {
		return vsixFile{}, err
	}
	var manifest []byte
	err = eachContent(archive, func(name string, f *zip.File) (err error) {
		if name == "package.json" {
			manifest, err = readManifest(f)
			return err
		}
		return unzip(f, io.Discard)
	})
	if err != nil {
		return vsixFile{}, err
	}
	id, version, err := parseManifest(manifest)
	if err != nil {
		return vsixFile{}, err
	}
	return vsixFile{path: file, sum: hex.EncodeToString(sum.Sum(nil)), size: size, id: id, folder: id + "-" + version}, nil
}

// maxManifest limits the memory for an extension's package.json.
const maxManifest = 4 << 20

func readManifest(f *zip.File) ([]byte, error) {
	in, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	manifest, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	if err == nil && len(manifest) > maxManifest {
		err = fmt.Errorf("it is larger than %d bytes", maxManifest)
	}
	return manifest, err
}

// Names without a slash and not of dots alone: they become the name of a folder.
var (
	extensionName    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,99}$`)
	extensionVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]{0,60}$`)
)

// parseManifest returns the name and version that an extension's package.json states.
func parseManifest(manifest []byte) (id, version string, err error) {
	if manifest == nil {
		return "", "", errors.New("it has no extension/package.json")
	}
	var m struct {
		Publisher, Name, Version string
		Engines                  map[string]string
	}
	if err := json.Unmarshal(bytes.TrimPrefix(manifest, []byte("\xef\xbb\xbf")), &m); err != nil {
		return "", "", fmt.Errorf("extension/package.json: %w", err)
	}
	publisher, name := strings.ToLower(m.Publisher), strings.ToLower(m.Name)
	if !extensionName.MatchString(publisher) || !extensionName.MatchString(name) || !extensionVersion.MatchString(m.Version) || m.Engines["vscode"] == "" {
		return "", "", errors.New("extension/package.json lacks a valid publisher, name, version or engines.vscode")
	}
	return publisher + "." + name, strings.ToLower(m.Version), nil
}

// forPlatform checks that an extension with programs of its own is for this platform.
func forPlatform(archive *zip.Reader) error {
	f, err := archive.Open("extension.vsixmanifest")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var m struct {
		Metadata struct {
			Identity struct {
				TargetPlatform string `xml:"TargetPlatform,attr"`
			}
		}
	}
	if err := xml.NewDecoder(io.LimitReader(f, 1<<20)).Decode(&m); err != nil {
		return fmt.Errorf("extension.vsixmanifest: %w", err)
	}
	arch := map[string]string{"amd64": "x64", "arm": "armhf"}[goruntime.GOARCH]
	arch = cmp.Or(arch, goruntime.GOARCH)
	if p := m.Metadata.Identity.TargetPlatform; !slices.Contains([]string{"", "universal", "undefined", "web", "linux-" + arch, "alpine-" + arch}, p) {
		return fmt.Errorf("it is for %.50q, not for linux-%s", p, arch)
	}
	return nil
}

// eachContent calls do for each file that an extension consists of, with its path in the
// extension's folder. No path leads out of the folder, and each is used once.
func eachContent(archive *zip.Reader, do func(name string, f *zip.File) error) error {
	used := map[string]bool{} // path → it is a folder
	for _, f := range archive.File {
		name, inside := strings.CutPrefix(f.Name, vsixContent)
		if !inside || name == "" || strings.HasSuffix(name, "/") {
			continue // a folder is made for the files in it
		}
		if !filepath.IsLocal(name) || path.Clean(name) != name || strings.ContainsAny(name, "\\\x00") {
			return fmt.Errorf("%.200q is not a valid path", f.Name)
		}
		if !f.Mode().IsRegular() {
			return fmt.Errorf("%.200q is neither a file nor a folder", f.Name)
		}
		if _, twice := used[name]; twice {
			return fmt.Errorf("%.200q is in it twice", f.Name)
		}
		used[name] = false
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if isDir, known := used[dir]; known && !isDir {
				return fmt.Errorf("%.200q is a file and a folder", dir)
			}
			used[dir] = true
		}
		if err := do(name, f); err != nil {
			return fmt.Errorf("%.200q: %w", f.Name, err)
		}
	}
	return nil
}

// unzip writes a file's content, and fails if its checksum is wrong.
func unzip(f *zip.File, to io.Writer) error {
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(to, in)
	return err
}

// unpackExtensions unpacks all .vsix files of a folder, each into a folder of its own
// below to, which is named like the file.
func unpackExtensions(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !isVSIX(entry.Name()) {
			continue
		}
		name := strings.TrimSuffix(entry.Name(), vsixSuffix)
		if err := unpackExtension(filepath.Join(from, entry.Name()), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("unpack %s: %w", entry.Name(), err)
		}
	}
	return nil
}

func unpackExtension(from, to string) error {
	archive, err := zip.OpenReader(from)
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	return eachContent(&archive.Reader, func(name string, f *zip.File) error {
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(unzip(f, out), out.Chmod(sharedMode(f.Mode())), out.Close())
	})
}

// extensionFolder reads the folder again when it has changed.
type extensionFolder struct {
	mu    sync.Mutex
	read  bool
	stamp string     // of the files that were read
	good  extensions // the last that could be used
	err   error      // of the last reading
}

// current returns the extensions as they are, or the last ones that could be used and what
// is wrong with the present ones.
func (e *extensionFolder) current(dir string) (extensions, error) {
	if dir == "" {
		return extensions{}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	stamp, err := stampOf(dir)
	if err != nil {
		e.read, e.err = false, err
		return e.good, err
	}
	if e.read && stamp == e.stamp {
		return e.good, e.err
	}
	found, err := readExtensions(dir)
	e.read, e.stamp, e.err = true, stamp, err
	if err == nil {
		e.good = found
	}
	return e.good, err
}

// stampOf changes when a .vsix file of the folder is replaced, written or removed.
func stampOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, entry := range entries {
		if !isVSIX(entry.Name()) {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, entry.Name()))
		if err != nil {
			return "", err
		}
		// Unlike the modification time, the change time is never set to an older one.
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(&b, "%q %d %d %d\n", entry.Name(), sys.Ino, sys.Size, sys.Ctim.Nano())
		}
	}
	return b.String(), nil
}
