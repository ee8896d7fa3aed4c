// Package registry asks image registries which image a reference names, and what an image
// says of itself. It downloads no layers of images, only the Features of development containers.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	oras "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"codehub/internal/workspace/imageref"
)

// Client asks registries. The zero value reaches all by TLS but those of this machine.
type Client struct {
	// Plain lists registries, as imageref.Registry names them, that are reached without TLS.
	Plain []string
	// HTTP sends the requests; nil: a client with a timeout.
	HTTP *http.Client
}

// Image is what an image says of itself.
type Image struct {
	Digest     string // of the reference, which may be that of a list of images
	Platforms  []string
	Env        []string
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string
}

// Kind says why a registry does not provide an image.
type Kind int

const (
	Other        Kind = iota
	Unreachable       // it does not respond, or cannot serve now
	LoginNeeded       // it wants a login, or has no such image
	LoginRefused      // it refused the login, or the login may not read the image
	Missing           // it has no such image
	Private           // it has a private address, which is not permitted
	NoFeature         // the reference names something else than a Feature
	TooLarge          // the Feature is larger than maxFeature
)

// Refusal is the error of a registry that does not provide an image. Its text has nothing of
// what the registry has sent: users choose the server by the image's name, and this server may
// reach others than they do.
type Refusal struct {
	Registry string
	Kind     Kind
	status   int
	feature  bool // it is about a Feature and not an image
}

func (e *Refusal) Error() string {
	what := "image"
	if e.feature {
		what = "Feature"
	}
	switch e.Kind {
	case Unreachable:
		return fmt.Sprintf("the registry %s does not respond", e.Registry)
	case LoginNeeded:
		return fmt.Sprintf("the registry %s does not provide the %s without a login", e.Registry, what)
	case LoginRefused:
		return fmt.Sprintf("the registry %s refuses the login", e.Registry)
	case Missing:
		return fmt.Sprintf("the registry %s has no such %s", e.Registry, what)
	case Private:
		return fmt.Sprintf("the registry %s, or where it leads, has a private address, which CODEHUB_PRIVATE_REGISTRIES does not list", e.Registry)
	case NoFeature:
		return fmt.Sprintf("the reference names something in the registry %s that is not a Feature", e.Registry)
	case TooLarge:
		return fmt.Sprintf("the Feature in the registry %s is larger than %d MiB", e.Registry, maxFeature>>20)
	}
	if e.status != 0 {
		return fmt.Sprintf("the registry %s responded with status %d", e.Registry, e.status)
	}
	return fmt.Sprintf("the registry %s sent a response that is not one of a registry", e.Registry)
}

// KindOf returns the kind of a Refusal, and Other for any other error.
func KindOf(err error) Kind {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Kind
	}
	return Other
}

const (
	requestTimeout = 10 * time.Second
	// maxConfig is the longest configuration of an image that is read.
	maxConfig = 8 << 20
)

// Resolve returns the digest of the image that a reference names now. An error is a *Refusal
// unless ctx ended.
func (c *Client) Resolve(ctx context.Context, ref string, login Login) (string, error) {
	repo, name, err := c.repository(ref, login)
	if err != nil {
		return "", err
	}
	found, err := repo.Resolve(ctx, name)
	if err != nil {
		return "", refusal(ctx, ref, login, err)
	}
	return found.Digest.String(), nil
}

// Read returns what the image says of itself, for the platform of this machine or else for
// another one on Linux. Errors are as of Resolve.
func (c *Client) Read(ctx context.Context, ref string, login Login) (Image, error) {
	repo, name, err := c.repository(ref, login)
	if err != nil {
		return Image{}, err
	}
	img, err := read(ctx, repo, name)
	if err != nil {
		return Image{}, refusal(ctx, ref, login, err)
	}
	return img, nil
}

func read(ctx context.Context, repo *remote.Repository, name string) (Image, error) {
	about, text, err := manifest(ctx, repo, name)
	if err != nil {
		return Image{}, err
	}
	img := Image{Digest: about.Digest.String()}
	var list ocispec.Index
	if err := json.Unmarshal(text, &list); err != nil {
		return Image{}, errNoRegistry
	}
	if len(list.Manifests) > 0 {
		chosen, ok := choose(list.Manifests)
		if !ok {
			return Image{}, errNoRegistry
		}
		for _, m := range list.Manifests {
			if m.Platform != nil && m.Platform.OS == "linux" {
				img.Platforms = append(img.Platforms, m.Platform.Architecture)
			}
		}
		if _, text, err = manifest(ctx, repo, chosen.Digest.String()); err != nil {
			return Image{}, err
		}
	}
	var single ocispec.Manifest
	if err := json.Unmarshal(text, &single); err != nil || single.Config.Digest == "" {
		return Image{}, errNoRegistry
	}
	if single.Config.Size > maxConfig {
		return Image{}, errNoRegistry
	}
	text, err = content.FetchAll(ctx, repo.Blobs(), single.Config)
	if err != nil {
		return Image{}, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(text, &config); err != nil {
		return Image{}, errNoRegistry
	}
	if len(list.Manifests) == 0 && config.Architecture != "" {
		img.Platforms = []string{config.Architecture}
	}
	slices.Sort(img.Platforms)
	img.Platforms = slices.Compact(img.Platforms)
	img.Env, img.Entrypoint, img.Cmd, img.Labels = config.Config.Env, config.Config.Entrypoint, config.Config.Cmd, config.Config.Labels
	return img, nil
}

// errNoRegistry is a response that is not one of a registry.
var errNoRegistry = errors.New("unexpected response")

// manifest returns a manifest by tag or digest.
func manifest(ctx context.Context, repo *remote.Repository, name string) (ocispec.Descriptor, []byte, error) {
	about, body, err := repo.Manifests().FetchReference(ctx, name)
	if err != nil {
		return about, nil, err
	}
	defer body.Close()
	if about.Size > maxConfig {
		return about, nil, errNoRegistry
	}
	text, err := content.ReadAll(io.LimitReader(body, maxConfig), about)
	return about, text, err
}

// choose returns the image of a list for this machine's platform, or else one for Linux.
func choose(list []ocispec.Descriptor) (ocispec.Descriptor, bool) {
	var other ocispec.Descriptor
	for _, m := range list {
		if m.Platform == nil || m.Platform.OS != "linux" {
			continue
		}
		if m.Platform.Architecture == runtime.GOARCH {
			return m, true
		}
		if other.Digest == "" {
			other = m
		}
	}
	return other, other.Digest != ""
}

// repository returns the repository of a reference and the tag or digest in it.
func (c *Client) repository(ref string, login Login) (*remote.Repository, string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return nil, "", fmt.Errorf("%.200q is not a reference to an image", ref)
	}
	name := ""
	switch of := reference.TagNameOnly(named).(type) {
	case reference.Digested:
		name = of.Digest().String()
	case reference.Tagged:
		name = of.Tag()
	}
	host := imageref.Registry(ref)
	client := c.HTTP
	if client == nil {
		client = &http.Client{Timeout: requestTimeout}
	}
	repo := &remote.Repository{
		Reference: oras.Reference{Registry: host, Repository: reference.Path(named), Reference: name},
		PlainHTTP: c.plain(host),
		Client: &auth.Client{
			Client: client, Header: http.Header{"User-Agent": {"codehub"}}, Cache: auth.NewCache(),
			Credential: func(_ context.Context, asked string) (auth.Credential, error) {
				if asked != (oras.Reference{Registry: host}).Host() {
					return auth.EmptyCredential, nil
				}
				return auth.Credential{Username: login.Username, Password: login.Password, RefreshToken: login.IdentityToken, AccessToken: login.RegistryToken}, nil
			},
		},
	}
	return repo, name, nil
}

func (c *Client) plain(host string) bool {
	if slices.Contains(c.Plain, host) {
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

func refusal(ctx context.Context, ref string, login Login, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	out := &Refusal{Registry: imageref.Registry(ref)}
	var response *errcode.ErrorResponse
	var network net.Error
	switch {
	case errors.As(err, &response):
		out.status = response.StatusCode
		out.Kind = ofStatus(response.StatusCode, login)
	case errors.Is(err, errPrivate):
		out.Kind = Private
	case errors.Is(err, errNoFeature):
		out.Kind = NoFeature
	case errors.Is(err, errTooLarge):
		out.Kind = TooLarge
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		out.Kind = LoginNeeded
	case errors.As(err, &network), ctx.Err() != nil:
		out.Kind = Unreachable
	case strings.Contains(err.Error(), "not found"): // a HEAD request has no body with a code
		out.Kind = Missing
	}
	return out
}

func ofStatus(status int, login Login) Kind {
	switch {
	case status == http.StatusNotFound:
		return Missing
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && login == Login{}:
		return LoginNeeded
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return LoginRefused
	case status == http.StatusTooManyRequests || status >= 500:
		return Unreachable
	}
	return Other
}

// OfMessage returns what the message of a Kubernetes node or of Docker about a pull means. They give
// no codes.
func OfMessage(message string) Kind {
	text := strings.ToLower(message)
	for _, kind := range []struct {
		kind  Kind
		words []string
	}{
		{LoginNeeded, []string{"unauthorized", "authorization failed", "authentication required", "no basic auth credentials", "access denied", "denied: ", "403 forbidden", "insufficient_scope"}},
		{Unreachable, []string{"dial tcp", "i/o timeout", "connection refused", "no such host", "connection reset", "deadline exceeded", "tls handshake timeout", "502 bad gateway", "503 service", "504 gateway", "500 internal", "429 too many", "toomanyrequests",
			"no route to host", "network is unreachable", "temporary failure in name resolution", "server misbehaving", "awaiting headers", "unexpected eof"}},
		{Missing, []string{"not found", "manifest unknown", "name unknown"}},
	} {
		for _, words := range kind.words {
			if strings.Contains(text, words) {
				return kind.kind
			}
		}
	}
	return Other
}
