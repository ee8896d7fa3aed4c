package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/base/setting"
	"codehub/internal/runtime"
	"codehub/internal/runtime/registry"
)

// A pinned image is named by its digest or its ID, and a name that codehub gives to images is
// never downloaded.
func TestChosenImages(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("1", 64)
	pinned := runtime.ImageChoice{Pinned: runtime.Image{Digest: digest, ID: "sha256:2"}}
	for _, c := range []struct {
		ref    string
		choice runtime.ImageChoice
		want   string
		policy corev1.PullPolicy
	}{
		{"debian:12", pinned, "debian@" + digest, corev1.PullIfNotPresent},
		{"127.0.0.1:5000/team/debian", pinned, "127.0.0.1:5000/team/debian@" + digest, corev1.PullIfNotPresent},
		{"127.0.0.1:5000/team/debian:12@sha256:" + strings.Repeat("0", 64), pinned, "127.0.0.1:5000/team/debian@" + digest, corev1.PullIfNotPresent},
		{"debian@" + digest, runtime.ImageChoice{}, "debian@" + digest, corev1.PullIfNotPresent},
		{"debian:12", runtime.ImageChoice{Pinned: runtime.Image{ID: "sha256:2"}}, "sha256:2", corev1.PullNever},
		{"codehub/workspace:latest", runtime.ImageChoice{}, "codehub/workspace:latest", corev1.PullNever},
		{"codehub/workspace@" + digest, runtime.ImageChoice{}, "codehub/workspace@" + digest, corev1.PullIfNotPresent},
		{"127.0.0.1:9/none:1", runtime.ImageChoice{}, "127.0.0.1:9/none:1", corev1.PullIfNotPresent}, // the nodes may reach it
	} {
		r := &Runtime{log: slog.New(slog.DiscardHandler), images: registries{logins: func(context.Context) map[string]registry.Login { return nil }}}
		got, err := r.chooseImage(t.Context(), c.ref, c.choice)
		if err != nil || got.name != c.want || got.policy != c.policy {
			t.Errorf("chooseImage(%q, %+v) = %+v, %v, want %q and %s", c.ref, c.choice, got, err, c.want, c.policy)
		}
	}
}

// A node's message about a pull becomes one that says what to do, and nothing of what a server
// has sent to the node is shown.
func TestPullsInPlainWords(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`failed to pull and unpack image "r.example.com/a:1": failed to resolve reference "r.example.com/a:1": r.example.com/a:1: not found`:                               fmt.Sprintf(runtime.MsgNoImage, "r.example.com"),
		`failed to resolve reference: failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://auth.example.com/: 401 Unauthorized`: fmt.Sprintf(runtime.MsgNodeLogin, "r.example.com"),
		`pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`:                             fmt.Sprintf(runtime.MsgNodeLogin, "r.example.com"),
		`failed to do request: Head "https://r.example.com/v2/a/manifests/1": dial tcp: lookup r.example.com on 10.0.0.2:53: no such host`:                                 fmt.Sprintf(runtime.MsgNodeUnreachable, "r.example.com"),
		`no match for platform in manifest: not there`: runtime.MsgNoPlatform,
		`something new`: "something new",
	} {
		var pull *runtime.PullError
		if err := inPlainWords(&runtime.PullError{Image: "r.example.com/a:1", Message: message}); !errors.As(err, &pull) || pull.Message != want {
			t.Errorf("%s: %v, want %q", message, err, want)
		}
	}
	err := inPlainWords(&runtime.PullError{Image: "codehub/none:1", Message: "Container image is not present with pull policy of Never"})
	if !strings.Contains(err.Error(), fmt.Sprintf(runtime.MsgNotDownloaded, "codehub/none:1")) {
		t.Error(err)
	}
}

// A node pulls an image again if the registry could not serve it, so that a call waits. What the
// registry has decided is final.
func TestFailedPulls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason, message string
		busy            bool
	}{
		{"ErrImagePull", `failed to do request: Head "https://r.example.com/v2/a/manifests/1": dial tcp: lookup r.example.com on 10.0.0.2:53: no such host`, true},
		{"ErrImagePull", `unexpected status from HEAD request to https://r.example.com/v2/a/manifests/1: 503 Service Unavailable`, true},
		{"ErrImagePull", `unexpected status from HEAD request to https://r.example.com/v2/a/manifests/1: 429 Too Many Requests`, true},
		{"ErrImagePull", `failed to do request: Head "https://r.example.com/v2/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)`, true},
		{"ErrImagePull", `manifest unknown`, false},
		{"ErrImagePull", `r.example.com/a:1: not found`, false},
		{"ErrImagePull", `denied: requested access to the resource is denied`, false},
		{"ErrImagePull", "something new", false},
		{"ImagePullBackOff", `Back-off pulling image "r.example.com/a:1"`, true},
		{"ImagePullBackOff", `Back-off pulling image "r.example.com/a:1": ErrImagePull: dial tcp 10.0.0.1:443: i/o timeout`, true},
		{"ImagePullBackOff", `Back-off pulling image "r.example.com/a:1": ErrImagePull: manifest unknown`, false},
		{"RegistryUnavailable", "", true},
		{"ErrImageNeverPull", "Container image is not present with pull policy of Never", false},
	} {
		for _, image := range []string{"r.example.com/a:1", "r.example.com/codehub/server:1"} {
			p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: containerHelper, Image: image}}}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerHelper, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}}}}
			err := inPlainWords(refusal(p))
			var pull *runtime.PullError
			if errors.Is(err, runtime.ErrBusy) != c.busy || errors.As(err, &pull) == c.busy {
				t.Errorf("%s %s: %v", c.reason, c.message, err)
			}
			if c.busy && err.Error() != fmt.Sprintf(runtime.MsgNodeUnreachable, "r.example.com") {
				t.Errorf("%s %s: %v", c.reason, c.message, err)
			}
		}
	}
}

func TestNextLineSkipsLongLines(t *testing.T) {
	t.Parallel()
	r := bufio.NewReaderSize(strings.NewReader("one\n"+strings.Repeat("x", 2*maxLine)+"\n\nlast\nhalf"), 16)
	for _, want := range []string{"one", "-", "", "last"} {
		text, complete, err := nextLine(r)
		if err != nil || complete != (want != "-") || complete && string(text) != want {
			t.Fatalf("line %.20q, %v, %v; want %q", text, complete, err, want)
		}
	}
	if _, _, err := nextLine(r); !errors.Is(err, io.EOF) {
		t.Errorf("a line without an end: %v", err)
	}
}

func TestSettingsResolve(t *testing.T) {
	t.Parallel()
	good := Settings{Namespace: "workspaces", ServerImage: "codehub/server:1", HomeSize: "10Gi", Ephemeral: "10Gi", NodeSelector: "pool=dev, disk=ssd", Tolerations: "dedicated=codehub:NoSchedule,gpu", PullSecrets: "a,b"}
	if err := good.Resolve(); err != nil || len(good.Nodes) != 2 || len(good.Tolerated) != 2 || len(good.SecretNames) != 2 || good.Size.Value() != 10<<30 || good.EphemeralSize.Value() != 10<<30 {
		t.Errorf("%+v, %v", good, err)
	}
	whole := good
	whole.Tolerations = `[{"key":"dedicated","value":"codehub","effect":"NoSchedule"},{"operator":"Exists","effect":"NoExecute","tolerationSeconds":60}]`
	if err := whole.Resolve(); err != nil || len(whole.Tolerated) != 2 || whole.Tolerated[0].Value != "codehub" || *whole.Tolerated[1].TolerationSeconds != 60 {
		t.Errorf("%+v, %v", whole.Tolerated, err)
	}
	whole.Tolerations = `[{"taint":"dedicated"}]`
	if err := whole.Resolve(); err == nil || !strings.Contains(err.Error(), "taint") {
		t.Errorf("an unknown field of a toleration: %v", err)
	}
	for name, change := range map[string]func(*Settings){
		"CODEHUB_SERVER_IMAGE":         func(s *Settings) { s.ServerImage = "" },
		"CODEHUB_KUBERNETES_NAMESPACE": func(s *Settings) { s.Namespace = "Not A Name" },
		"CODEHUB_HOME_SIZE":            func(s *Settings) { s.HomeSize = "much" },
		"CODEHUB_EPHEMERAL_STORAGE":    func(s *Settings) { s.Ephemeral = "-1" },
		"CODEHUB_NODE_SELECTOR":        func(s *Settings) { s.NodeSelector = "pool" },
		"CODEHUB_TOLERATIONS":          func(s *Settings) { s.Tolerations = "a=b:Sometimes" },
		"CODEHUB_POD_TEMPLATE":         func(s *Settings) { s.PodTemplate = "/nowhere" },
	} {
		s := good
		change(&s)
		var problem *setting.Problem
		if err := s.Resolve(); !errors.As(err, &problem) || problem.Setting != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
