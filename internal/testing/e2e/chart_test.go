package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
)

// required are values that every release needs.
var required = []string{
	"--set", "url=http://code.test,workspaceURL=http://*.ws.test,database.url=postgres://db/codehub,archive.url=s3://bucket",
	"--set", "image.repository=r.test/server,ideImage=r.test/ide:1,defaultImage=r.test/workspace:1",
}

// helm lint finds nothing, and the schema of the values refuses wrong ones, with their names.
func TestChartRefusesWrongValues(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	if out, err := kubetest.Helm(t, append([]string{"lint", "--strict", kubetest.Chart()}, required...)...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, wrong := range []string{
		"url=code.example.com", "workspaceURL=https://ws.example.com", "replicas=0", "replicas=two", "image.pullPolicy=Sometimes", "archive.url=/data",
		"database.url=mysql://db", "workspaces.homeSize=much", "workspaces.network.deny={10.0.0.0}", "unknown=1", "workspaces.unknown=1", "networkPolicy.metricsFrom=all",
		"image.repository=", "ideImage=", "defaultImage=",
	} {
		name, _, _ := strings.Cut(wrong, "=")
		_, err := kubetest.Helm(t, append(append([]string{"template", "codehub", kubetest.Chart()}, required...), "--set", wrong)...)
		last := name[strings.LastIndex(name, ".")+1:]
		if err == nil || !strings.Contains(err.Error(), last) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// release is an installation of the chart, reached through its Service as from an ingress.
type release struct {
	*testing.T
	c      *kubetest.Cluster
	dsn    string // of the database, for the test
	values []string
	web    *http.Client
}

// install installs the chart with two replicas, and waits until they are ready.
func install(t *testing.T, c *kubetest.Cluster, server, ide string) *release {
	t.Helper()
	b := s3Bucket(t)
	dsn, err := url.Parse(database(t))
	if err != nil {
		t.Fatal(err)
	}
	db := dsn.Host
	if dir := dsn.Query().Get("host"); dir != "" {
		port := dsn.Query().Get("port")
		if port == "" {
			port = "5432"
		}
		db = filepath.Join(dir, ".s.PGSQL."+port)
	}
	user := dsn.User.Username()
	if user == "" {
		user = dsn.Query().Get("user")
	}
	repository, tag, _ := strings.Cut(server, ":")
	r := &release{T: t, c: c, dsn: dsn.String(), values: []string{
		"--set", "url=http://code.test", "--set", "workspaceURL=http://*.ws.test",
		"--set", "image.repository=" + repository, "--set-string", "image.tag=" + tag, "--set", "ideImage=" + ide, "--set", "defaultImage=" + env.testImage,
		"--set", fmt.Sprintf("database.url=postgres://%s@%s%s?sslmode=disable", user, c.Forward(db), dsn.Path),
		"--set", "archive.existingSecret=bucket", "--set", "workspaces.storageClass=" + kubetest.StorageClass, "--set", "workspaces.homeSize=1Gi",
		"--set-string", "workspaces.cpus=0.5", "--set", "workspaces.memory=256Mi", "--set", "resources.requests.cpu=50m", "--set", "resources.requests.memory=64Mi",
	}}
	secret := map[string]string{}
	for _, kv := range b.settingsVia("http://" + c.Forward(strings.TrimPrefix(b.s3.Endpoint, "http://"))) {
		if name, value, _ := strings.Cut(kv, "="); name == "CODEHUB_ARCHIVE_URL" {
			r.values = append(r.values, "--set-string", "archive.url="+value)
		} else {
			secret[name] = value
		}
	}
	c.StorageClass()
	core, ctx := c.Client.CoreV1(), t.Context()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "codehub"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Secrets("codehub").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bucket"}, StringData: secret}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.helm("install")
	service, err := core.Services("codehub").Get(ctx, "codehub", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dial := c.DialFrom(1)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network, service.Spec.ClusterIP+":80")
	}}
	t.Cleanup(transport.CloseIdleConnections)
	r.web = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	harness.Eventually(t, "the nodes lead the Service's connections to a server", func() bool {
		res, err := r.web.Get("http://code.test/healthz")
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	return r
}

// helm runs a command that changes the release, and waits until its Pods are ready.
func (r *release) helm(command string, more ...string) {
	r.Helper()
	args := append([]string{command, "codehub", kubetest.Chart(), "--namespace", "codehub", "--wait", "--timeout", "4m"}, r.values...)
	if out, err := r.c.Helm(append(args, more...)...); err != nil {
		r.logs()
		r.Fatalf("%v\n%s", err, out)
	}
}

// migrateAsNewer changes the database like the first server of a newer version whose migration
// keeps the earlier version running.
func (r *release) migrateAsNewer() {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), r.dsn)
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(r.Context(), `
		ALTER TABLE workspaces ADD COLUMN next text NOT NULL DEFAULT 'new';
		CREATE TABLE next (workspace_id uuid PRIMARY KEY REFERENCES workspaces ON DELETE CASCADE);
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (90000, true)`); err != nil {
		r.Fatal(err)
	}
}

// logs logs what the servers have printed last.
func (r *release) logs() {
	pods, err := r.c.Client.CoreV1().Pods("codehub").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.Log(err)
		return
	}
	lines := int64(30)
	for _, p := range pods.Items {
		raw, err := r.c.Client.CoreV1().Pods("codehub").GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(context.Background())
		r.Logf("%s %+v: %v\n%s", p.Name, p.Status.ContainerStatuses, err, raw)
	}
}

// setUp creates the first user with the code that each server has printed.
func (r *release) setUp(username, password string) {
	r.Helper()
	pods, err := r.c.Client.CoreV1().Pods("codehub").List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	code := ""
	for _, p := range pods.Items {
		raw, err := r.c.Client.CoreV1().Pods("codehub").GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(r.Context())
		_, after, found := strings.Cut(string(raw), "http://code.test/setup?code=")
		printed, _, _ := strings.Cut(after, `"`)
		if err != nil || !found || code != "" && printed != code {
			r.Fatalf("the setup code of %s is %q, and %q elsewhere, %v\n%s", p.Name, printed, code, err, raw)
		}
		code = printed
	}
	form := url.Values{"code": {code}, "username": {username}, "password": {password}, "password2": {password}}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://code.test/setup", strings.NewReader(form.Encode()))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", "http://code.test")
	res, err := r.web.Transport.RoundTrip(req) // without the redirect
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSeeOther {
		body, _ := io.ReadAll(res.Body)
		r.Fatalf("create the first user: %d %.500s", res.StatusCode, body)
	}
}

// serverImage builds the image of the server with a binary.
func serverImage(t *testing.T, binary string) string {
	t.Helper()
	image := fmt.Sprintf("codehub/kube-chart-server:%d", time.Now().UnixNano())
	if out, err := exec.Command("../../../images/server/build.sh", image, binary).CombinedOutput(); err != nil {
		t.Fatalf("build the server's image: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", image).Run() })
	return image
}

// The chart installs two servers, whose first user is created with the code in their logs.
// A workspace runs within the chart's network policies. An upgrade under load loses no request,
// although the database is migrated meanwhile, and the workspace keeps running. The upgrade is from
// the binary CODEHUB_TEST_EARLIER_BINARY, or to the same one if there is none.
func TestChart(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	server := serverImage(t, env.binary)
	images, first := []string{server, env.testImage}, server
	if binary := os.Getenv("CODEHUB_TEST_EARLIER_BINARY"); binary != "" {
		first = serverImage(t, binary)
		images = append(images, first)
	}
	ide := kubetest.Image(t, "kube-chart-ide", map[string]string{"/opt/codehub-ide/start": kubetest.Build(t, "../../../images/testserver")})
	c := kubetest.Start(t, kubetest.Options{Nodes: 2, Images: append(images, ide)})
	c.EnforcePolicies()
	r := install(t, c, first, ide)
	t.Cleanup(func() {
		if t.Failed() {
			r.logs()
		}
	})
	r.setUp("boss", "a long password")
	web := codehub.WithHTTPClient(r.web)
	session, _, err := codehub.Login(t.Context(), "http://code.test", api.Login{Username: "boss", Password: "a long password"}, web)
	if err != nil {
		t.Fatal(err)
	}
	token, err := session.CreateToken(t.Context(), api.CreateToken{Name: "e2e"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := codehub.New("http://code.test", token.Token, web)
	if err != nil {
		t.Fatal(err)
	}
	running := "RUNNING"
	w, err := client.Create(t.Context(), api.CreateWorkspace{Name: "demo", DesiredState: &running})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the workspace runs", func() bool {
		now, err := client.Get(t.Context(), w.ID)
		return err == nil && now.Phase == running
	})
	ask := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://code.test"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(api.TokenHeader, token.Token)
		res, err := r.web.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, err.Error()
		}
		return res.StatusCode, string(b)
	}
	file := "/w/" + w.ID + "/file?path=notes.txt"
	if status, body := ask(http.MethodPut, file, "kept"); status != http.StatusOK {
		t.Fatalf("write a file: %d %s", status, body)
	}
	if status, body := ask(http.MethodGet, "/metrics", ""); status != http.StatusNotFound {
		t.Errorf("an Ingress would lead to the metrics: %d %.200s", status, body)
	}
	slices, err := c.Client.DiscoveryV1().EndpointSlices("codehub").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=codehub-metrics"})
	if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 2 || *slices.Items[0].Ports[0].Port != 9090 {
		t.Errorf("the Service of the metrics leads to %+v, %v", slices, err)
	}
	harness.Eventually(t, "the network isolation was checked and is complete", func() bool {
		s, err := client.AdminStatus(t.Context())
		if err != nil || len(s.Servers) != 2 {
			return false
		}
		for _, one := range s.Servers {
			if len(one.Conditions) > 0 {
				t.Logf("conditions: %+v", one.Conditions)
				return false
			}
		}
		return true
	})
	pod, err := c.Client.CoreV1().Pods("codehub-workspaces").List(t.Context(), metav1.ListOptions{LabelSelector: "codehub.dev/workspace=" + w.ID})
	if err != nil || len(pod.Items) != 1 {
		t.Fatalf("%d Pods of the workspace, %v", len(pod.Items), err)
	}

	// Requests of three clients, to the API and to the workspace, during the upgrade.
	over := make(chan struct{})
	var group sync.WaitGroup
	var mu sync.Mutex
	done, lost := 0, []string{}
	for range 3 {
		group.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-time.After(20 * time.Millisecond):
				}
				path := file
				if n%2 == 0 {
					path = "/api/v1/workspaces/" + w.ID
				}
				status, body := ask(http.MethodGet, path, "")
				mu.Lock()
				done++
				if status != http.StatusOK {
					lost = append(lost, fmt.Sprintf("%s: %d %.200s", path, status, body))
				}
				mu.Unlock()
			}
		})
	}
	began := time.Now()
	r.migrateAsNewer()
	_, tag, _ := strings.Cut(server, ":")
	r.helm("upgrade", "--set", "podAnnotations.round=two", "--set-string", "image.tag="+tag)
	close(over)
	group.Wait()
	if len(lost) > 0 || done < 50 {
		t.Errorf("%d of %d requests were lost:\n%s", len(lost), done, strings.Join(lost[:min(len(lost), 20)], "\n"))
	}
	t.Logf("%d requests during an upgrade of %s", done, time.Since(began).Round(time.Second))
	after, err := c.Client.CoreV1().Pods("codehub-workspaces").List(t.Context(), metav1.ListOptions{LabelSelector: "codehub.dev/workspace=" + w.ID})
	if err != nil || len(after.Items) != 1 || after.Items[0].UID != pod.Items[0].UID {
		t.Errorf("the workspace's Pod was replaced: %v", err)
	}
	if status, body := ask(http.MethodGet, file, ""); status != http.StatusOK || body != "kept" {
		t.Errorf("the file after the upgrade: %d %s", status, body)
	}

	if out, err := c.Helm("test", "codehub", "--namespace", "codehub", "--timeout", "2m"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// Without the release, the workspace runs on and stays isolated. The same release can be
	// installed again, another one cannot.
	if out, err := c.Helm("uninstall", "codehub", "--namespace", "codehub", "--wait", "--timeout", "2m"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	policies, err := c.Client.NetworkingV1().NetworkPolicies("codehub-workspaces").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=codehub"})
	if err != nil || len(policies.Items) != 3 {
		t.Errorf("%d NetworkPolicies of workspaces after helm uninstall, %v", len(policies.Items), err)
	}
	left, err := c.Client.CoreV1().Pods("codehub-workspaces").Get(t.Context(), pod.Items[0].Name, metav1.GetOptions{})
	if err != nil || left.UID != pod.Items[0].UID || left.DeletionTimestamp != nil {
		t.Errorf("the workspace's Pod after helm uninstall: %v", err)
	}
	for name, adopts := range map[string]bool{"codehub": true, "other": false} {
		args := append([]string{"install", name, kubetest.Chart(), "--namespace", "codehub", "--dry-run=server"}, r.values...)
		if _, err := c.Helm(args...); (err == nil) != adopts || err != nil && !strings.Contains(err.Error(), "invalid ownership metadata") {
			t.Errorf("install the release %s again: %v", name, err)
		}
	}
}
