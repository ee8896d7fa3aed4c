package docker

import (
	"encoding/json"
	"net/url"

	"codehub/internal/base/setting"
)

// galleryEnv is the variable by which code-server learns its extension gallery. Its
// value is JSON: code-server does not start with any other text.
const galleryEnv = "EXTENSIONS_GALLERY"

// maxGallery keeps the variable below the kernel's limit on one of 128 KiB.
const maxGallery = 64 << 10

func (s *Settings) gallery() error {
	if s.Gallery == "" {
		return nil
	}
	invalid := func(why string) error {
		return setting.Invalid("CODEHUB_EXTENSIONS_GALLERY", why, `give JSON like {"serviceUrl": "https://gallery.example.com/vscode/gallery"}`)
	}
	if len(s.Gallery) > maxGallery {
		return invalid("it is longer than 64 KiB")
	}
	var value map[string]any
	if err := json.Unmarshal([]byte(s.Gallery), &value); err != nil || value == nil {
		return invalid("it is not a JSON object")
	}
	address, _ := value["serviceUrl"].(string)
	if u, err := url.Parse(address); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return invalid("serviceUrl is not an http or https address")
	}
	return nil
}

// Variables are the environment variables that the settings give to each workspace.
func (s *Settings) Variables() []string {
	if s.Gallery == "" {
		return nil
	}
	return []string{galleryEnv + "=" + s.Gallery}
}
