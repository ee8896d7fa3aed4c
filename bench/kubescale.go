package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"

	"codehub/internal/runtime"
	"codehub/internal/runtime/kube"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/kubetest"
	"codehub/internal/workspace"
)

// The bars of kubescale.
const (
	scaleTick      = 100 * time.Millisecond
	scaleMemory    = 512 << 20
	scaleFirstTick = 10 * time.Second
	scaleStarts    = 1.2 // times as long as kubectl apply of the same Pods
	scaleRest      = 2 * time.Minute
)

// kubeScale measures a server with many workspaces on a cluster whose nodes kwok plays. Of n
// workspaces two fifths run, three tenths are archived, and the others are in standby.
func kubeScale(ctx context.Context, o options) error {
	return onCluster(ctx, func(tb *standIn) error {
		s, err := newScale(ctx, tb, o)
		if err != nil {
			return err
		}
		defer s.close()
		if err := s.measure(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, lastLines(s.server.Log(), 60))
		}
		return nil
	})
}

// scale is a server with its workspaces.
type scale struct {
	cluster *kubetest.Cluster
	server  *proc.Server
	api     *apiClient
	db      *database

	count, burst int      // workspaces, and those that are started at once
	rounds       int      // of the starts and their rivals
	ids          []string // of those with a home
	running      int      // the first so many of ids run
}

func (s *scale) close() {
	s.server.Close()
	_ = s.db.close()
}

// firstUID is that of the first workspace. Homes belong to theirs already, as those of workspaces
// that were started before.
const firstUID = 1500000

// podTemplate puts workspaces on the nodes that kwok plays. Tasks stay on the real one.
const podTemplate = `spec:
  nodeSelector: {` + kubetest.FakeLabel + `: "true"}
  tolerations: [{key: ` + kubetest.FakeLabel + `, operator: Exists}]
`

func newScale(ctx context.Context, tb *standIn, o options) (*scale, error) {
	n := o.workspaces
	server, ide := kubeImages(tb, o.binary)
	c := kubetest.Start(tb, kubetest.Options{Nodes: 2, Images: []string{server, ide}})
	if err := answerFor(tb, c.Address); err != nil {
		return nil, err
	}
	c.FakeNodes(ctx, 10, c.Address)
	db, err := openDatabase(ctx)
	if err != nil {
		return nil, err
	}
	s := &scale{cluster: c, db: db, count: n, burst: n / 10, rounds: min(o.n, 3)}
	template := filepath.Join(tb.TempDir(), "pod.yaml")
	if err := os.WriteFile(template, []byte(podTemplate), 0o600); err != nil {
		return nil, err
	}
	// The workspaces' image is from a registry, as on most clusters: its digest is known from there,
	// and no start has to ask a node.
	registry := dockertest.NewRegistry(tb)
	host := c.Registry(registry.Host())
	image := host + strings.TrimPrefix(registry.Add("scale/workspace", dockertest.Layers(1, 1<<10, 0)), registry.Host())
	settings := append(kubeSettings(tb, c, server, ide), "CODEHUB_PLAIN_REGISTRIES="+host)
	s.server, err = proc.New(proc.Options{Binary: o.binary, DataDir: filepath.Join(db.dir, "server"), Env: append(settings,
		"CODEHUB_DATABASE_URL="+db.pg.URL(), "CODEHUB_POD_TEMPLATE="+template, "CODEHUB_NODE_SELECTOR=", "CODEHUB_LOG_LEVEL=info",
		fmt.Sprintf("CODEHUB_WORKSPACE_UIDS=%d-%d", firstUID, firstUID+10*n), "CODEHUB_MAX_OPERATIONS=500", "CODEHUB_MAX_RUNNING_PER_USER=0", "CODEHUB_MAX_RUNNING_GLOBAL=0")})
	if err != nil {
		return nil, err
	}
	return s, s.fill(ctx, image)
}

// answerFor answers at the ports of a workspace, as its IDE and its agent would.
func answerFor(tb *standIn, address string) error {
	for _, port := range []int{runtime.IDEPort, runtime.AgentPort} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		tb.Cleanup(func() { l.Close() })
		go func() { _ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
	}
	return nil
}

// fill starts the server once, writes the rows and creates the homes, and starts it again.
func (s *scale) fill(ctx context.Context, image string) error {
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.server.Start(starting); err != nil {
		return err
	}
	installation := s.server.Installation()
	s.server.Stop()
	archived := s.count * 3 / 10
	conn, err := pgx.Connect(ctx, s.db.pg.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := (population{standby: s.count - archived, archived: archived}).insert(ctx, conn); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `UPDATE workspaces SET owner_user_id = (SELECT id FROM users WHERE username = 'admin'), storage_backend = $1, image_ref = $2, last_access_at = now(), 
		home_ctx = CASE WHEN home_ctx ->> 'state' = 'live' THEN home_ctx - 'marker' || jsonb_build_object('uid', $3 + uid_offset) ELSE home_ctx END`,
		workspace.StorageKubernetes, image, firstUID)
	if err != nil {
		return err
	}
	homes, err := s.homes(ctx, conn)
	if err != nil {
		return err
	}
	if err := s.createHomes(ctx, installation, homes); err != nil {
		return err
	}
	again, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.server.Start(again); err != nil {
		return err
	}
	s.api, err = login(ctx, s.server.URL)
	return err
}

func (s *scale) homes(ctx context.Context, conn *pgx.Conn) ([]runtime.VolumeSpec, error) {
	rows, err := conn.Query(ctx, `SELECT id::text, home_ctx ->> 'claim' FROM workspaces WHERE home_ctx ->> 'state' = 'live' ORDER BY id`)
	if err != nil {
		return nil, err
	}
	var homes []runtime.VolumeSpec
	var id, claim string
	_, err = pgx.ForEachRow(rows, []any{&id, &claim}, func() error {
		s.ids = append(s.ids, id)
		homes = append(homes, runtime.VolumeSpec{Workspace: workspace.ID(id), Claim: claim, Storage: workspace.StorageKubernetes, Owner: "user", Name: "workspace"})
		return nil
	})
	return homes, err
}

func (s *scale) createHomes(ctx context.Context, installation string, homes []runtime.VolumeSpec) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.cluster.Kubeconfig)
	if err != nil {
		return err
	}
	r, err := kube.New(config, kube.Config{Installation: installation, Settings: kube.Settings{
		Namespace: kubeNamespace, StorageClass: kubetest.StorageClass, Size: resource.MustParse("1Gi"),
	}})
	if err != nil {
		return err
	}
	defer r.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for _, home := range homes {
		g.Go(func() error {
			if err := r.CreateEmptyVolume(gctx, home); err != nil {
				return err
			}
			return r.SettleVolume(gctx, home.Workspace, home.Claim)
		})
	}
	return g.Wait()
}

func (s *scale) measure(ctx context.Context) error {
	// One start first: a Pod reads what is to be known of the image.
	run := s.count * 2 / 5
	begun := time.Now()
	for next := 1; s.running < run-s.burst; next = min(s.running+250, run-s.burst) {
		if err := s.start(ctx, s.ids[s.running:next]); err != nil {
			return err
		}
		s.running = next
	}
	fmt.Printf("kubescale: %d workspaces, %d homes; %d started in %s\n", s.count, len(s.ids), s.running, time.Since(begun).Round(time.Second))
	if err := s.starts(ctx); err != nil {
		return err
	}
	if err := s.rest(ctx); err != nil {
		return err
	}
	return s.restart(ctx)
}

// rest measures a server that has nothing to do.
func (s *scale) rest(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	before, err := s.ticks(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, scaleRest); err != nil {
		return err
	}
	after, err := s.ticks(ctx)
	if err != nil {
		return err
	}
	asked := s.cluster.Requests(kubeNamespace, begun)
	maps.DeleteFunc(asked, func(what string, _ int) bool { return strings.HasPrefix(what, "watch ") })
	fmt.Printf("kubescale: requests to the API server at rest within %s besides watches (none): %v: %s\n", scaleRest, asked, verdict(len(asked) == 0))
	mean := after.since(before).mean()
	fmt.Printf("kubescale: a tick at rest %s on average (at most %s): %s\n", ms1(mean), scaleTick, verdict(mean <= scaleTick))
	now, err := memoryOf(s.server.Pid(), "VmRSS:")
	if err != nil {
		return err
	}
	peak, err := memoryOf(s.server.Pid(), "VmHWM:")
	if err != nil {
		return err
	}
	fmt.Printf("kubescale: memory of the leader: %d MB, at most %d MB until now (at most %d MB): %s\n", now>>20, peak>>20, scaleMemory>>20, verdict(peak <= scaleMemory))
	return nil
}

// settle waits until the leader ticks at its idle interval.
func (s *scale) settle(ctx context.Context) error {
	for {
		a, err := s.ticks(ctx)
		if err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Second); err != nil {
			return err
		}
		b, err := s.ticks(ctx)
		if err != nil {
			return err
		}
		if b.since(a).count <= 1 {
			return nil
		}
	}
}

// restart kills the server and measures until the first tick of the next one.
func (s *scale) restart(ctx context.Context) error {
	s.server.Kill()
	begun := time.Now()
	if err := s.server.Launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if t, err := s.ticks(ctx); err == nil && t.count > 0 {
			took := time.Since(begun)
			fmt.Printf("kubescale: from the start of a new leader until its first tick %s (at most %s), of which the tick %s: %s\n", ms(took), scaleFirstTick, ms(t.mean()), verdict(took <= scaleFirstTick))
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// tickFigures are those of the metric codehub_tick_seconds.
type tickFigures struct{ count, sum float64 }

func (t tickFigures) since(before tickFigures) tickFigures {
	return tickFigures{t.count - before.count, t.sum - before.sum}
}

func (t tickFigures) mean() time.Duration { return time.Duration(t.sum / max(1, t.count) * 1e9) }

func (s *scale) ticks(ctx context.Context) (t tickFigures, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+"/metrics", nil)
	if err != nil {
		return t, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		for name, to := range map[string]*float64{"codehub_tick_seconds_count ": &t.count, "codehub_tick_seconds_sum ": &t.sum} {
			if value, ok := strings.CutPrefix(lines.Text(), name); ok {
				if *to, err = strconv.ParseFloat(value, 64); err != nil {
					return t, err
				}
			}
		}
	}
	return t, lines.Err()
}
