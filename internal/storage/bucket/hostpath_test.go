package bucket

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostPath(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	check(t, os.MkdirAll(filepath.Join(data, "real"), 0o700))
	check(t, os.Symlink("/mnt/elsewhere", filepath.Join(data, "out")))
	check(t, os.Symlink("real", filepath.Join(data, "in")))
	for _, c := range []struct{ folder, host, want string }{
		{"/anywhere", "", "/anywhere"},
		{"/anywhere/../else/", "", "/else"},
		{data + "/archives", "/srv/codehub", "/srv/codehub/archives"},
		{data + "/not/yet/there", "/srv/codehub", "/srv/codehub/not/yet/there"},
		{data, "/srv/codehub", "/srv/codehub"},
		{data + "/in/archives", "/srv/codehub", "/srv/codehub/in/archives"},
		{data + "/out/archives", "/srv/codehub", ""},
		{data + "/../archives", "/srv/codehub", ""},
		{data + "-archives", "/srv/codehub", ""},
		{"/mnt/archives", "/srv/codehub", ""},
	} {
		got, err := HostPath(c.folder, data, c.host)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s with %q: %q, %v; want %q", c.folder, c.host, got, err, c.want)
		}
	}
}
