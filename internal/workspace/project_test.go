package workspace_test

import (
	"strings"
	"testing"

	"codehub/internal/workspace"
)

func TestRepositoryAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{ // the folder, or "refused"
		"https://github.com/x/api.git":                     "project/api",
		"https://github.com/x/api/":                        "project/api",
		"http://git.example:8080/a/b/c":                    "project/c",
		"https://org@dev.azure.com/org/p/_git/repo":        "project/repo",
		"ssh://git@git.example:2222/x/api.git":             "project/api",
		"git@github.com:x/api.git":                         "project/api",
		"https://git.example/x/한글.git":                     "project/한글",
		"https://git.example/org/.github":                  "project/.github",
		"https://git.example/x/.git":                       "project/repository",
		"https://git.example/x/a%20b;rm":                   "project/a-b-rm",
		"https://[::1]:3000/x/y":                           "project/y",
		"https://git.example/x/..":                         "project/repository",
		"":                                                 "refused",
		"api":                                              "refused",
		"/srv/git/api":                                     "refused",
		"../api":                                           "refused",
		"file:///etc":                                      "refused",
		"ext::sh -c id":                                    "refused",
		"ext::id":                                          "refused",
		"git://git.example/x/y":                            "refused",
		"ftp://git.example/x/y":                            "refused",
		"--upload-pack=touch /tmp/x":                       "refused",
		"-c":                                               "refused",
		"--upload-pack=id@host:x":                          "refused",
		"git@-oProxyCommand=id:x":                          "refused",
		"git@host:-oProxyCommand=id":                       "refused",
		"ssh://-oProxyCommand=id/x":                        "refused",
		"ssh://git@-oProxyCommand=id/x":                    "refused",
		"ssh://-oProxyCommand=id@host/x":                   "refused",
		"https://user:secret@git.example/x/y":              "refused",
		"ssh://git:secret@git.example/x/y":                 "refused",
		"https://ghp_0123456789@github.com/x/y":            "refused",
		"https://" + strings.Repeat("a", 40) + "@host/x/y": "refused",
		"https://git.example":                              "refused",
		"https://git.example/":                             "refused",
		"https:///x/y":                                     "refused",
		"https://git.example/x?private_token=s":            "refused",
		"https://git.example/x#y":                          "refused",
		"https://git.example/x y":                          "refused",
		"https://git.example/x\ny":                         "refused",
		"https://git.example/\u202ex":                      "refused",
		`https://git.example\@evil/x`:                      "refused",
		"HTTPS://git.example/x/y":                          "refused", // git has no such protocol
		"https://git.example/" + strings.Repeat("x", 2000): "refused",
	} {
		r := workspace.Repository{URL: address}
		got := r.Folder()
		if err := r.Check(); err != nil {
			got = "refused"
			if field, reason := workspace.FieldOf(err); field != "repo" || (reason == "password") != strings.Contains(err.Error(), "password") {
				t.Errorf("%q: %v (%s, %s)", address, err, field, reason)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", address, got, want)
		}
	}
}

func TestRepositoryBranchesAndFolders(t *testing.T) {
	t.Parallel()
	good := workspace.Repository{URL: "https://git.example/x/y"}
	for branch, ok := range map[string]bool{
		"main": true, "feature/한글-1": true, "v1.0": true, "a@b": true,
		"-main": false, "--upload-pack=id": false, "a..b": false, "a b": false, "a~1": false, "a^": false, "a:b": false, "@": false, "a@{1}": false,
		"/a": false, "a/": false, "a//b": false, ".a": false, "a/.b": false, "a.lock": false, "a.": false, "a\nb": false, `a\b`: false, "a\x00": false,
		strings.Repeat("x", 251): false,
	} {
		r := good
		r.Branch = branch
		if err := r.Check(); (err == nil) != ok {
			t.Errorf("branch %q: %v", branch, err)
		}
	}
	for path, ok := range map[string]bool{
		"src": true, "project/a/b": true, "한글": true,
		"/etc": false, "../x": false, "a/../../x": false, "a/../b": false, ".ssh": false, ".config/git": false, ".": false, "a/.git": false, "a/.GIT/hooks": false, "a/-x": false, "-x": false, "a//b": false, "a/": false, "a\nb": false,
	} {
		r := good
		r.Path = path
		if err := r.Check(); (err == nil) != ok {
			t.Errorf("folder %q: %v", path, err)
		}
	}
	for _, depth := range []int{-1, 1 << 30} {
		r := good
		r.Depth = depth
		if r.Check() == nil {
			t.Errorf("depth %d is allowed", depth)
		}
	}
}

func TestProject(t *testing.T) {
	t.Parallel()
	of := func(paths ...string) *workspace.Project {
		p := &workspace.Project{}
		for _, path := range paths {
			p.Repositories = append(p.Repositories, workspace.Repository{URL: "https://git.example/x/y", Path: path})
		}
		return p
	}
	var none *workspace.Project
	for folder, p := range map[string]*workspace.Project{"project": none, "project/y": of(""), "src": of("src")} {
		if err := p.Check(); err != nil || p.Folder() != folder {
			t.Errorf("%s, %v", p.Folder(), err)
		}
	}
	if p := of("a", "b"); p.Check() != nil || p.Folder() != "project" {
		t.Errorf("%s, %v", p.Folder(), p.Check())
	}
	// What one repository has in its folder, such as a link, must not decide where another goes.
	for _, p := range []*workspace.Project{of("a", "a"), of("a", "a/b"), of("a/b", "A"), of(strings.Split(strings.Repeat("x,", 16)+"x", ",")...)} {
		if p.Check() == nil {
			t.Errorf("%+v is allowed", p)
		}
	}
}
