import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/layout.css";
import "./style/charts.css";
import "./style/views.css";
import { App } from "./app";
import { loadRecorded } from "./data/recorded";

await loadRecorded();
render(<App />, document.getElementById("app")!);
