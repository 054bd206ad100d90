// Command substrate-sim is the simulated Agent Substrate: its parts as servers, an installer, and a small client.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atewf/atewf/test/substrate/install"
	"github.com/atewf/atewf/test/substrate/plane"
	"github.com/atewf/atewf/test/substrate/proto"
	"github.com/atewf/atewf/test/substrate/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "substrate-sim", Short: "A simulated Agent Substrate", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(apiserver(), controller(), atelet(), worker(), installer(), ctl())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "substrate-sim:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, addr string, h http.Handler) error {
	s := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- s.ListenAndServe() }()
	select {
	case <-ctx.Done():
		return s.Close()
	case err := <-done:
		return err
	}
}

func apiserver() *cobra.Command {
	var gen, state string
	cmd := &cobra.Command{Use: "apiserver", Short: "Serve the Control API on port 443, and faults and stimuli on port 8081", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return err
		}
		cs, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		dyn, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		store, err := sim.NewStore(plane.Remote{Node: addressOf(cs)}, sim.Options{File: filepath.Join(state, "records.json")})
		if err != nil {
			return err
		}
		srv, err := sim.NewServer(store, proto.Generation(gen), reviewer(cs))
		if err != nil {
			return err
		}
		ca, cert, err := certificates(state)
		if err != nil {
			return err
		}
		if err := publish(ctx, dyn, ca); err != nil {
			return fmt.Errorf("publishing the trust bundle: %w", err)
		}
		g := sim.NewGRPC(cert)
		srv.Register(g)
		l, err := net.Listen("tcp", ":443")
		if err != nil {
			return err
		}
		go func() {
			<-ctx.Done()
			g.Stop()
		}()
		failed := make(chan error, 2)
		go func() { failed <- serve(ctx, fmt.Sprintf(":%d", plane.AdminPort), plane.Admin(store)) }()
		go func() { failed <- g.Serve(l) }()
		return <-failed
	}}
	cmd.Flags().StringVar(&gen, "api", string(proto.Runbook), "generation of the API: runbook, multi, localsnapshot or assignednode")
	cmd.Flags().StringVar(&state, "state", "", "directory for the records")
	return cmd
}

// addressOf finds nodes by name. Their addresses do not change while one of this name is there.
func addressOf(cs kubernetes.Interface) func(context.Context, string) (string, error) {
	return func(ctx context.Context, name string) (string, error) {
		n, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return a.Address, nil
			}
		}
		return "", fmt.Errorf("node %s has no internal address", name)
	}
}

const audience = "api.ate-system.svc"

// reviewer asks the API server whether a token is good for the audience.
func reviewer(cs kubernetes.Interface) func(context.Context, string) error {
	return func(ctx context.Context, token string) error {
		r, err := cs.AuthenticationV1().TokenReviews().Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if !r.Status.Authenticated {
			return fmt.Errorf("the token is not good: %s", r.Status.Error)
		}
		return nil
	}
}

// certificates are made once and kept with the records: pods trust what they were started with.
func certificates(dir string) (ca []byte, cert tls.Certificate, err error) {
	file := filepath.Join(dir, "serving.pem")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if ca, cert, err = sim.Certificates(audience); err != nil {
			return nil, cert, err
		}
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			return nil, cert, err
		}
		out := append([]byte(nil), ca...)
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})...)
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		return ca, cert, os.WriteFile(file, out, 0o600)
	}
	if err != nil {
		return nil, cert, err
	}
	block, rest := pem.Decode(b)
	cert, err = tls.X509KeyPair(rest, rest)
	return pem.EncodeToMemory(block), cert, err
}

// publish puts the authority where the real one is found.
func publish(ctx context.Context, dyn dynamic.Interface, ca []byte) error {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
		"metadata": map[string]any{"name": "servicedns.podcert.ate.dev:identity:primary-bundle", "labels": map[string]any{"podcert.ate.dev/canarying": "live"}},
		"spec":     map[string]any{"signerName": "servicedns.podcert.ate.dev/identity", "trustBundle": string(ca)},
	}}
	_, err := dyn.Resource(schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "clustertrustbundles"}).
		Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "podcertificate-controller", Force: true})
	return err
}

func controller() *cobra.Command {
	var capacity int32
	var every time.Duration
	cmd := &cobra.Command{Use: "controller", Short: "Render WorkerPools and register workers", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return err
		}
		cfg.QPS = -1
		cs, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		dyn, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return err
		}
		c := &plane.Controller{Kube: cs, Dynamic: dyn, Registry: plane.Client{URL: install.AdminURL()}, Capacity: capacity}
		return c.Run(cmd.Context(), every)
	}}
	cmd.Flags().Int32Var(&capacity, "capacity", 1, "actors that a worker takes")
	cmd.Flags().DurationVar(&every, "every", 500*time.Millisecond, "pause between two looks")
	return cmd
}

func atelet() *cobra.Command {
	var version, dir string
	var broken bool
	cmd := &cobra.Command{Use: "atelet", Short: "Serve a node", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if broken {
			return errors.New("image cache layout 7 in /var/lib/ate/image-cache is not the one this version reads")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		failed := make(chan error, 2)
		ready := http.NewServeMux()
		ready.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
		go func() { failed <- serve(cmd.Context(), fmt.Sprintf(":%d", plane.AteletReadyPort), ready) }()
		go func() {
			failed <- serve(cmd.Context(), fmt.Sprintf(":%d", plane.AteletPort), plane.Atelet(version, dir))
		}()
		return <-failed
	}}
	cmd.Flags().StringVar(&version, "version", "", "version of Substrate")
	cmd.Flags().StringVar(&dir, "dir", "", "directory for local snapshots")
	cmd.Flags().BoolVar(&broken, "broken", false, "never get Ready")
	return cmd
}

func worker() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{Use: "worker", Short: "Run actors", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		box := sim.NewBox()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			// After SIGTERM the actors have a window in which they can still be suspended; what is left then is lost.
			<-cmd.Context().Done()
			for end := time.Now().Add(grace); box.Len() > 0 && time.Now().Before(end); {
				time.Sleep(100 * time.Millisecond)
			}
			cancel()
		}()
		return serve(ctx, fmt.Sprintf(":%d", plane.WorkerPort), plane.Worker(box))
	}}
	cmd.Flags().DurationVar(&grace, "grace", 30*time.Second, "how long actors go on after SIGTERM")
	return cmd
}

func kubeconfig() (*rest.Config, error) {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}).ClientConfig()
}

func installer() *cobra.Command {
	o := install.Options{}
	var api string
	var running, paused int
	cmd := &cobra.Command{Use: "install", Short: "Install on a cluster, after removing what was there", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := kubeconfig()
		if err != nil {
			return err
		}
		o.API = proto.Generation(api)
		i, err := install.New(cfg, o)
		if err != nil {
			return err
		}
		if err := i.Run(cmd.Context()); err != nil {
			return err
		}
		return i.Seed(cmd.Context(), running, paused)
	}}
	f := cmd.Flags()
	f.StringVar(&api, "api", string(proto.Runbook), "generation of the Control API")
	f.StringVar(&o.Old, "old", "v1.0.0", "installed version")
	f.StringVar(&o.New, "new", "v1.1.0", "new version, with its atelet and cloned pools; empty for none")
	f.StringVar(&o.Image, "image", "docker.io/atewf/substrate-sim:test", "image of the simulator")
	f.Int32Var(&o.Capacity, "capacity", 1, "actors that a worker takes")
	f.Int32Var(&o.Replicas, "replicas", 6, "workers of each of the two pools")
	f.StringVar(&o.ControlNode, "control-node", "node3", "node of the control plane")
	f.IntVar(&running, "running", 0, "actors to start")
	f.IntVar(&paused, "paused", 0, "actors to start and pause")
	return cmd
}

func ctl() *cobra.Command {
	url, output := install.AdminURL(), "table"
	cmd := &cobra.Command{Use: "ctl", Short: "Look at actors and workers, and move actors"}
	cmd.PersistentFlags().StringVar(&url, "admin", url, "where the control plane takes stimuli")
	cmd.PersistentFlags().StringVarP(&output, "output", "o", output, "table or json")
	print := func(w io.Writer, v any, table func(*tabwriter.Writer)) error {
		if output == "json" {
			return json.NewEncoder(w).Encode(v)
		}
		tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	}
	cmd.AddCommand(&cobra.Command{Use: "actors", Short: "List actors with the state that they keep in memory", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		all, err := plane.Client{URL: url}.Look(cmd.Context())
		if err != nil {
			return err
		}
		return print(cmd.OutOrStdout(), all, func(tw *tabwriter.Writer) {
			fmt.Fprintln(tw, "ACTOR\tSTATE\tNODE\tPOOL\tIDENTITY\tCOUNTER\tERROR")
			for _, a := range all {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", a.Actor, a.State, a.Node, a.Pool, a.Identity, a.Counter, a.Error)
			}
		})
	}})
	cmd.AddCommand(&cobra.Command{Use: "workers", Short: "List workers", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		all, err := plane.Client{URL: url}.Workers(cmd.Context())
		if err != nil {
			return err
		}
		return print(cmd.OutOrStdout(), all, func(tw *tabwriter.Writer) {
			fmt.Fprintln(tw, "NAME\tPOOL\tSTATE\tNODE\tPOD")
			for _, w := range all {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", w.Name, w.Pool, w.State, w.Node, w.Pod)
			}
		})
	}})
	for _, verb := range []string{"suspend", "pause", "resume"} {
		cmd.AddCommand(&cobra.Command{Use: verb + " ATESPACE/NAME...", Short: verb + " actors", Args: cobra.MinimumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			for _, a := range args {
				if err := (plane.Client{URL: url}).Do(cmd.Context(), http.MethodPost, "/"+verb, plane.Act{Actor: a}, nil); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	return cmd
}
