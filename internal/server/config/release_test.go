package config

import (
	"testing"

	"github.com/alecthomas/kong"

	"codehub/internal/base/setting"
)

// A release names its images by digest; a setting still names another one.
func TestReleaseNamesItsImages(t *testing.T) {
	read := func() (c Config) {
		parser, err := kong.New(&c, kong.Vars{"codehub_version": "test"}, setting.Seconds)
		if err == nil {
			_, err = parser.Parse(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := read(); c.Docker.IDEImage != "codehub/ide:latest" || c.Defaults.DefaultImage != "codehub/workspace:latest" {
		t.Errorf("without a release: %q, %q", c.Docker.IDEImage, c.Defaults.DefaultImage)
	}
	const digest = "@sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	ideImage, workspaceImage = "registry.example.com/codehub/ide"+digest, "registry.example.com/codehub/workspace"+digest
	t.Cleanup(func() { ideImage, workspaceImage = "", "" })
	if c := read(); c.Docker.IDEImage != ideImage || c.Defaults.DefaultImage != workspaceImage {
		t.Errorf("of a release: %q, %q", c.Docker.IDEImage, c.Defaults.DefaultImage)
	}
	t.Setenv("CODEHUB_IDE_IMAGE", "codehub/ide:latest")
	if c := read(); c.Docker.IDEImage != "codehub/ide:latest" || c.Defaults.DefaultImage != workspaceImage {
		t.Errorf("with a setting: %q, %q", c.Docker.IDEImage, c.Defaults.DefaultImage)
	}
}
