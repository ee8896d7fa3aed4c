// Command sbom writes the bill of materials of a release as SPDX 2.3, from what Go's linker has
// recorded in its programs, and the licences of these modules, from the modules' own files.
//
//	sbom VERSION DATE COMMIT NAME=PROGRAM… <MODULES
//
// MODULES has lines with the name, version and folder of each module, of "stdlib" for Go's own
// packages, and "npm:NAME VERSION LICENCE" of each script in the program named codehub. Programs of
// one name, say for two processors, are one package. The same input writes the same bytes.
package main

import (
	"bufio"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	DocumentDescribes []string       `json:"documentDescribes"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	Version          string        `json:"versionInfo"`
	Purpose          string        `json:"primaryPackagePurpose"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	ExternalRefs     []externalRef `json:"externalRefs"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: sbom VERSION DATE COMMIT NAME=PROGRAM…")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(version, date, commit string, programs []string) error {
	sources, err := readSources()
	if err != nil {
		return err
	}
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: "codehub-" + version,
		// A name, not an address: a document of another commit has another.
		DocumentNamespace: "https://spdx.org/spdxdocs/codehub-" + version + "-" + commit,
		CreationInfo:      creationInfo{Created: date, Creators: []string{"Tool: codehub-sbom"}},
	}
	packages := map[string]spdxPackage{}
	relations := map[relationship]bool{}
	for _, p := range programs {
		name, path, _ := strings.Cut(p, "=")
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		program := newPackage(name, version, "APPLICATION", "Apache-2.0", "pkg:generic/"+name+"@"+version)
		packages[program.SPDXID] = program
		relations[relationship{d.SPDXID, "DESCRIBES", program.SPDXID}] = true
		parts := []part{{"stdlib", strings.TrimPrefix(info.GoVersion, "go")}}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			parts = append(parts, part{m.Path, m.Version})
		}
		if name == "codehub" {
			for p := range sources {
				if strings.HasPrefix(p.name, "npm:") {
					parts = append(parts, p)
				}
			}
		}
		for _, part := range parts {
			source, ok := sources[part]
			if !ok {
				return fmt.Errorf("%s contains %s %s, which the input does not have", path, part.name, part.version)
			}
			name, purl := part.name, "pkg:golang/"+part.name
			if npm, ok := strings.CutPrefix(part.name, "npm:"); ok {
				name, purl = npm, "pkg:npm/"+strings.Replace(npm, "@", "%40", 1)
			}
			contained := newPackage(name, part.version, "LIBRARY", license(source), purl+"@"+part.version)
			packages[contained.SPDXID] = contained
			relations[relationship{program.SPDXID, "CONTAINS", contained.SPDXID}] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(packages)) {
		p := packages[id]
		d.Packages = append(d.Packages, p)
		if p.Purpose == "APPLICATION" {
			d.DocumentDescribes = append(d.DocumentDescribes, id)
		}
	}
	d.Relationships = slices.SortedFunc(maps.Keys(relations), func(a, b relationship) int {
		return strings.Compare(a.Element+a.Type+a.Related, b.Element+b.Type+b.Related)
	})
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

// part is something that a program contains.
type part struct{ name, version string }

// readSources reads where the licences of the parts are: a folder or a file.
func readSources() (map[part]string, error) {
	sources := map[part]string{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), " ", 3)
		if len(f) != 3 {
			return nil, errors.New("the input has a line that is not NAME VERSION FOLDER: " + lines.Text())
		}
		sources[part{f[0], f[1]}] = f[2]
	}
	return sources, lines.Err()
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newPackage(name, version, purpose, license, purl string) spdxPackage {
	return spdxPackage{
		SPDXID: "SPDXRef-" + notInID.ReplaceAllString(name+"-"+version, "-"), Name: name, Version: version, Purpose: purpose,
		DownloadLocation: noAssertion, LicenseConcluded: noAssertion, LicenseDeclared: license, CopyrightText: noAssertion,
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", purl}},
	}
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)`)

// license is the SPDX expression of the licences in a file, or in the licence files of a folder.
func license(source string) string {
	files := []string{source}
	if entries, err := os.ReadDir(source); err == nil {
		files = nil
		for _, e := range entries {
			if !e.IsDir() && licenseFile.MatchString(e.Name()) {
				files = append(files, filepath.Join(source, e.Name()))
			}
		}
	}
	var ids []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return noAssertion
		}
		found := licensecheck.Scan(text)
		for _, m := range found.Match {
			if !m.IsURL && found.Percent >= 75 && !slices.Contains(ids, m.ID) {
				ids = append(ids, m.ID)
			}
		}
	}
	if len(ids) == 0 {
		return noAssertion
	}
	slices.Sort(ids)
	return strings.Join(ids, " AND ")
}
