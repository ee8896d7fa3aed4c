package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/watch"

	"codehub/client"
	"codehub/internal/workspace"
)

const kubectls = 8 // run at once; 2, 4, 16 and 40 took longer

// start starts workspaces at once, by a hundred connections, and waits until all run.
func (s *scale) start(ctx context.Context, ids []string) error { return s.bring(ctx, ids, "RUNNING") }

func (s *scale) bring(ctx context.Context, ids []string, to string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(100)
	for _, id := range ids {
		g.Go(func() error {
			err := s.api.setDesired(gctx, id, to)
			var refused *client.Error
			if err != nil && !errors.As(err, &refused) { // the server has closed the idle connection
				err = s.api.setDesired(gctx, id, to)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.api.await(ctx, id, to); err != nil {
			return err
		}
	}
	return nil
}

// starts measures starts at once, and the same Pods without codehub, in turns. The workspaces
// of the last turn stay.
func (s *scale) starts(ctx context.Context) error {
	free := s.ids[len(s.ids)-s.burst:]
	burst := s.ids[s.running : s.running+s.burst]
	// The cluster makes a home's volume when its first Pod starts. Later starts do not wait for
	// that, so it is done before the rounds.
	if _, err := s.barePods(ctx, free); err != nil {
		return err
	}
	if err := s.start(ctx, burst); err != nil {
		return err
	}
	var ours, applied []time.Duration
	for range s.rounds {
		if err := s.bring(ctx, burst, "STANDBY"); err != nil {
			return err
		}
		took, err := s.barePods(ctx, free)
		if err != nil {
			return err
		}
		applied = append(applied, took)
		at := time.Now()
		if err := s.start(ctx, burst); err != nil {
			return err
		}
		ours = append(ours, time.Since(at))
	}
	s.running += s.burst
	ratio := float64(median(ours)) / float64(median(applied))
	fmt.Printf("kubescale: %d starts at once %s; %d kubectl at once apply the same Pods in %s: %.2f times as long (at most %.1f): %s\n",
		s.burst, ms(median(ours)), kubectls, ms(median(applied)), ratio, scaleStarts, verdict(ratio <= scaleStarts))
	return nil
}

// applyPods divides Pods among kubectls.
func (s *scale) applyPods(all []*corev1.Pod) error {
	var g errgroup.Group
	for part := range slices.Chunk(all, (len(all)+kubectls-1)/kubectls) {
		g.Go(func() error {
			var files strings.Builder
			for _, p := range part {
				p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
				p.Namespace = kubeNamespace
				text, err := json.Marshal(p)
				if err != nil {
					return err
				}
				files.Write(append(text, '\n'))
			}
			_, err := s.cluster.Kubectl(files.String(), "apply", "--filename", "-")
			return err
		})
	}
	return g.Wait()
}

// barePods makes Pods like that of a workspace, with homes of their own, all at once, and
// returns the time until all run. It removes them.
func (s *scale) barePods(ctx context.Context, homes []string) (time.Duration, error) {
	pods := s.cluster.Client.CoreV1().Pods(kubeNamespace)
	like, err := pods.Get(ctx, workspace.ID(s.ids[0]).ContainerName(), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	like.Spec.NodeName = ""
	var wanted []*corev1.Pod
	for _, id := range homes {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "bare-" + id, Labels: map[string]string{"bench": "bare"}, Annotations: like.Annotations},
			Spec:       *like.Spec.DeepCopy(),
		}
		for i := range p.Spec.Volumes {
			if claim := p.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
				claim.ClaimName = workspace.ID(id).VolumeName()
			}
		}
		wanted = append(wanted, p)
	}
	all := metav1.ListOptions{LabelSelector: "bench=bare"}
	seen, err := pods.List(ctx, all)
	if err != nil {
		return 0, err
	}
	// It watches again when a busy API server ends a watch.
	events, err := watch.NewRetryWatcherWithContext(ctx, seen.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
		o.LabelSelector = all.LabelSelector
		return pods.Watch(ctx, o)
	}})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	begun := time.Now()
	if err := s.applyPods(wanted); err != nil {
		return 0, err
	}
	run := map[string]bool{}
	for len(run) < len(homes) {
		e, ok := <-events.ResultChan()
		if !ok {
			return 0, errors.New("the watch of the Pods ended")
		}
		if p, is := e.Object.(*corev1.Pod); is && p.Status.Phase == corev1.PodRunning {
			run[p.Name] = true
		}
	}
	took := time.Since(begun)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return 0, err
	}
	for {
		left, err := pods.List(ctx, all)
		if err != nil || len(left.Items) == 0 {
			return took, err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
