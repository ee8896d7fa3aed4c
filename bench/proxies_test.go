package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestInTurnsChangesTheOrder(t *testing.T) {
	t.Parallel()
	var order []int
	if err := inTurns(3, 3, func(i int) error { order = append(order, i); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 2, 0, 2, 1, 2, 0, 1}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
}

func TestIdleSocketsFitTheDescriptors(t *testing.T) {
	t.Parallel()
	for descriptors, want := range map[uint64]int{100: 1, 20_000: 7125, 30_000: 10_000, 1 << 20: 10_000} {
		if got := idleSockets(descriptors); got != want {
			t.Errorf("%d descriptors: %d sockets, want %d", descriptors, got, want)
		}
	}
}

func TestReadTimes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "times")
	for content, ok := range map[string]bool{"17\t200\t1500\n18\t200\t2500\n": true, "17\t502\t1500\n": false, "": false, "17\t200\n": false} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readTimes(file)
		if ok != (err == nil) {
			t.Errorf("%q: %v", content, err)
		}
		if want := []time.Duration{1500 * time.Microsecond, 2500 * time.Microsecond}; ok && !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", content, got, want)
		}
	}
}

func TestGroupOfThisProcess(t *testing.T) {
	t.Parallel()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var group int
	if err := json.Unmarshal([]byte(strings.Fields(rest)[2]), &group); err != nil {
		t.Fatal(err)
	}
	pids, err := groupOf(group)
	if err != nil || !slices.Contains(pids, os.Getpid()) {
		t.Errorf("the group %d has %v, %v", group, pids, err)
	}
}

// Lists of containers and of volumes get a copy of what mentions the workspace for each id,
// and of nothing else.
func TestCopiesInLists(t *testing.T) {
	t.Parallel()
	const from = "01a20841-dc1f-7b14-85f3-e4346b6866ea"
	c := &copies{from: from, object: strings.Repeat("a", 64), lists: map[string][]byte{}}
	c.ids = []string{c.id(from, 0), c.id(from, 1)}
	for list, want := range map[string]string{
		`[{"Id":"` + c.object + `","Names":["/codehub-ws-` + from + `"]},{"Id":"other"}]`: `[{"Id":"` + c.object + `","Names":["/codehub-ws-` + from + `"]},{"Id":"other"},` +
			`{"Id":"` + c.container(0) + `","Names":["/codehub-ws-` + c.ids[0] + `"]},{"Id":"` + c.container(1) + `","Names":["/codehub-ws-` + c.ids[1] + `"]}]`,
		`{"Volumes":[{"Name":"` + from + `"}],"Warnings":null}`: `{"Volumes":[{"Name":"` + from + `"},{"Name":"` + c.ids[0] + `"},{"Name":"` + c.ids[1] + `"}],"Warnings":null}`,
		`[]`: `[]`,
	} {
		got, err := c.expand([]byte(list))
		if err != nil || string(got) != want {
			t.Errorf("%s:\n%s, want\n%s: %v", list, got, want, err)
		}
	}
}
