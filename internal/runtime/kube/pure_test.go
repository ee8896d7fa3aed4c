package kube

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/setting"
)

func TestImageRef(t *testing.T) {
	t.Parallel()
	pinned := runtime.ImageChoice{Pinned: runtime.Image{Digest: "sha256:1"}}
	for _, c := range []struct {
		ref    string
		choice runtime.ImageChoice
		want   string
	}{
		{"debian:12", runtime.ImageChoice{}, "debian:12"},
		{"debian:12", pinned, "debian@sha256:1"},
		{"debian", pinned, "debian@sha256:1"},
		{"127.0.0.1:5000/team/debian", pinned, "127.0.0.1:5000/team/debian@sha256:1"},
		{"127.0.0.1:5000/team/debian:12@sha256:0", pinned, "127.0.0.1:5000/team/debian@sha256:1"},
		{"debian:12", runtime.ImageChoice{Pinned: runtime.Image{ID: "sha256:2"}}, "debian:12"},
	} {
		if got := imageRef(c.ref, c.choice); got != c.want {
			t.Errorf("imageRef(%q, %+v) = %q, want %q", c.ref, c.choice, got, c.want)
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
	good := Settings{Namespace: "workspaces", ServerImage: "codehub/server:1", HomeSize: "10Gi", NodeSelector: "pool=dev, disk=ssd", Tolerations: "dedicated=codehub:NoSchedule,gpu", PullSecrets: "a,b"}
	if err := good.Resolve(); err != nil || len(good.Nodes) != 2 || len(good.Tolerated) != 2 || len(good.SecretNames) != 2 || good.Size.Value() != 10<<30 {
		t.Errorf("%+v, %v", good, err)
	}
	for name, change := range map[string]func(*Settings){
		"CODEHUB_SERVER_IMAGE":         func(s *Settings) { s.ServerImage = "" },
		"CODEHUB_KUBERNETES_NAMESPACE": func(s *Settings) { s.Namespace = "Not A Name" },
		"CODEHUB_HOME_SIZE":            func(s *Settings) { s.HomeSize = "much" },
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
